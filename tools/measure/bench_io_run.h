// The measurements of `terrace bench io` after its flags have been checked: it makes the file and measures
// one stream, or one for each of many sizes of ring and block. The code here must never print except to the
// given console.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/stream_job.h>

#include "console.h"
#include "measure/bench_io_report.h"

namespace terrace {

struct IoPlan {
  std::string job_name;
  std::string rw;  // as it was given
  io::StreamOptions stream;
  io::EngineOptions engine;  // its queue_depth is the blocks in flight and the slots of the ring
  std::string engine_reason;
  std::filesystem::path file;
  bool own_file = true;  // made for this run, 0600, and gone however the program ends
  bool direct = true;
  bool register_memory = true;
  bool register_file = true;
  bool device_token = true;  // keeps other measurements off the drive meanwhile
};

// Throws any failure.
IoReport measure_io(const IoPlan& plan, Console& console);

struct SweepCell {
  uint64_t ring_bytes = 0;
  uint64_t block_bytes = 0;
  double bytes_per_second = 0;  // medians of the rounds
  double cpu_seconds_per_byte = 0;
};

// Measures one stream for each size of ring and block that fit together. Every round measures each of them
// once.
std::vector<SweepCell> sweep_io(const IoPlan& plan, uint64_t round_count, Console& console);
std::string sweep_text(const IoPlan& plan, const std::vector<SweepCell>& cells);
std::string sweep_json(const IoPlan& plan, const std::vector<SweepCell>& cells);

}  // namespace terrace
