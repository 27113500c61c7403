// The measurements of `terrace bench step` after its flags have been checked: a model of tensors of noise is
// trained on the tiers without its arithmetic. Every step leases each tensor as a forward and a backward pass
// do, and writes noise as its gradient in the memory of the simulated device. The rest is done by the
// Offloader as in training: gradients cross to the host, the update runs, parameters go home. The code here
// must never print except to the given console.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/offload/offloader.h>
#include <terrace/optimizer_cpu/optimizer.h>

#include "console.h"

namespace terrace {

struct StepPlan {
  uint64_t parameters = 0;
  uint64_t chunk_elements = 0;
  DataType type = DataType::bf16;
  std::string optimizer;  // as it was given
  UpdateMode update_mode = UpdateMode::after_backward;
  OptimizerSettings settings;
  OffloadOptions options;  // budgets included
  uint32_t threads = 0;    // 0: one per core
  uint32_t rounds = 5;     // measured rounds, after one round that does not count
  // `against_io`: after every step the records' bytes move once more through a ring of the same size, without
  // an update.
  bool against_io = false;
};

// Returns tensors of one chunk each, which Muon takes for matrices; the last one takes the rest.
std::vector<TensorSpec> step_tensors(const StepPlan& plan);
// Returns the uses of one step.
std::vector<TensorUse> step_trace(const StepPlan& plan, const std::vector<TensorSpec>& tensors);

struct StepRound {
  double seconds = 0;  // seconds of the update, or of the whole step if the update has no time of its own
  double step_seconds = 0;
  double cpu_seconds = 0;  // processor time of the whole process meanwhile
  OffloadCounters moved;   // counters of the whole step
  OffloadCounters timed;   // counters of the time in `seconds` alone
  double io_seconds = 0;   // seconds of the same transfers without an update; 0: not measured
  double io_cpu_seconds = 0;
};

struct StepBenchReport {
  StepPlan plan;
  MemoryPlan memory;
  uint32_t chunks = 0;
  uint32_t threads = 0;
  std::vector<StepRound> rounds;
  TrafficBound bound;
  std::vector<TierUse> host_ledger;
  uint64_t device_bytes = 0;
  uint64_t process_bytes = 0;  // memory of the process as the system counts it
  uint64_t tier_bytes = 0;
  uint64_t stream_bytes = 0;  // bytes of --against-io, each way per round
};

// Throws any failure.
StepBenchReport measure_step(const StepPlan& plan, Console& console);

// Return the results in words and as JSON, and measure nothing.
std::string step_report_text(const StepBenchReport& report);
std::string step_report_json(const StepBenchReport& report);

}  // namespace terrace
