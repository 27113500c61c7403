// JobStatus: what a running job says of itself to whoever asks, and its form as JSON (docs/control.md). It is
// a copy: nobody who reads it can hold up a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/train/trainer.h>

namespace terrace {

struct TierStatus {
  std::string name;           // "device"
  uint64_t budget_bytes = 0;  // 0: the disk
  uint64_t used_bytes = 0;
  uint64_t peak_bytes = 0;
};

struct LinkBytes {
  std::string name;  // as the log of steps has it: "h2d", "record_read"
  uint64_t bytes = 0;
};

struct WaitTime {
  std::string name;  // "fetch_wait"
  uint64_t ns = 0;
};

struct JobStatus {
  uint64_t pid = 0;
  std::string model;
  uint64_t step = 0;   // done, of the whole run
  uint64_t steps = 0;  // of the whole run
  // Of the last step; none before the first.
  std::optional<double> loss;
  double learning_rate = 0;
  uint64_t tokens = 0;
  uint64_t step_ns = 0;
  std::string update_mode;
  std::vector<LinkBytes> links;
  std::vector<WaitTime> waits;
  std::string bound_by;  // the last step, as the log has it: "disk_reads"; "none" before the first

  std::vector<TierStatus> tiers;
  uint64_t least_host_bytes = 0;       // that the host budget may be
  uint64_t most_host_bytes = 0;        // that it can make use of
  uint32_t kept_chunks = 0;            // of optimizer states, in host memory: each saves a read and a write
  uint32_t record_chunks = 0;          // all; 0 where they are on the device
  std::optional<uint64_t> epoch_step;  // of the last durable commit
  std::optional<uint64_t> checkpoint_step;  // of the last complete checkpoint of this run

  std::string waits_for;  // at this moment, in words; empty when the step thread does not wait

  double tokens_per_second() const {
    return step_ns > 0 ? static_cast<double>(tokens) * 1e9 / static_cast<double>(step_ns) : 0;
  }
};

// What the last step was like; between two steps.
void set_last_step(JobStatus& status, const StepReport& report);
// Budgets and what they are used for, as they are now; between two steps.
void set_memory(JobStatus& status, Trainer& trainer);

// A JSON object.
std::string job_status_json(const JobStatus& status);
// Of an answer's member "status". Members that are not known are passed over; what is missing or of another
// type is an Error(io).
JobStatus parse_job_status(const JsonNode& node);

// A whole number that is a member of an object; 0 when there is none.
uint64_t json_whole_number(const JsonNode& object, std::string_view key);

}  // namespace terrace
