// The measurements of `terrace bench io` after its flags have been checked: it makes the file and measures
// one stream, or one for each of many sizes of ring and block. The code here must never print except to the
// given console.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/base/units.h>

#include "console.h"
#include "measure/measuring.h"

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

struct IoReport {
  IoPlan plan;
  uint32_t depth = 0;  // slots of the ring
  bool direct = true;
  StreamOutcome outcome;  // of the measured part only
};
double io_seconds(const IoReport& report);
double cpu_seconds(const IoReport& report);
uint64_t moved_bytes(const IoReport& report);

// Throws any failure.
IoReport measure_io(const IoPlan& plan, Console& console);

// The sizes that a sweep compares.
inline constexpr std::array kSweptRings = {2 * kMiB,  4 * kMiB,  8 * kMiB, 12 * kMiB,
                                           16 * kMiB, 32 * kMiB, 64 * kMiB};
inline constexpr std::array kSweptBlocks = {256 * kKiB,   512 * kKiB, 768 * kKiB, kMiB,
                                            3 * kMiB / 2, 2 * kMiB,   4 * kMiB};

struct SweepCell {
  uint64_t ring_bytes = 0;
  uint64_t block_bytes = 0;
  double bytes_per_second = 0;  // medians of the rounds
  double cpu_seconds_per_byte = 0;
};

// Measures one stream for each size of ring and block that fit together. Every round measures each of them
// once.
std::vector<SweepCell> sweep_io(const IoPlan& plan, uint64_t round_count, Console& console);

// Return the results in words and as JSON, and measure nothing.
std::string io_report_text(const IoReport& report);
// Returns one object. "jobs"[0] has fio's names and units, and "terrace" has the values that fio lacks.
std::string io_report_json(const IoReport& report);
std::string sweep_text(const IoPlan& plan, const std::vector<SweepCell>& cells);
std::string sweep_json(const IoPlan& plan, const std::vector<SweepCell>& cells);

}  // namespace terrace
