// The results of `terrace bench io`, in words and as JSON with fio's names. The code here must never measure.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/aio/stream_job.h>

namespace terrace {

struct IoReport {
  std::string job_name;
  std::string rw;  // as it was given
  std::string file;
  std::string engine_reason;
  std::string engine;
  std::string registration_refusal;  // empty when memory and file are registered
  uint64_t block_bytes = 0;
  uint32_t depth = 0;
  uint64_t region_bytes = 0;
  bool direct = true;
  io::StreamResult result;
  io::EngineStats stats;  // counters of the measured part only
};

double io_seconds(const IoReport& report);
double cpu_seconds(const IoReport& report);
uint64_t moved_bytes(const IoReport& report);

std::string io_report_text(const IoReport& report);
// Returns one object. "jobs"[0] has fio's names and units, and "terrace" has the values that fio lacks.
std::string io_report_json(const IoReport& report);

}  // namespace terrace
