// What `terrace bench step` does once its flags have been checked: a model of tensors of noise on the tiers,
// trained without its arithmetic. In every step each tensor is leased as by a forward and a backward pass,
// and noise is written as its gradient in the memory of the simulated device; what follows (gradients
// crossing to the host, the update, parameters going home) is what training does, through the Offloader and
// nothing else. It must never print but to the console it is given.
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
  std::string engine_reason;
  uint32_t threads = 0;  // 0: one per core
  uint32_t rounds = 5;   // after one that is not counted
  // After every step the records' bytes move through a ring of the same size once more, without an update.
  bool against_io = false;
};

// Tensors of one chunk each, the last one of what is left.
std::vector<TensorSpec> step_tensors(const StepPlan& plan);
// The uses of one step.
std::vector<TensorUse> step_trace(const StepPlan& plan, const std::vector<TensorSpec>& tensors);

struct StepRound {
  double seconds = 0;  // of the update; of the whole step where it has no time of its own
  double step_seconds = 0;
  double cpu_seconds = 0;  // of the whole process meanwhile
  OffloadCounters moved;   // of the whole step
  OffloadCounters timed;   // of `seconds` alone
  double io_seconds = 0;   // of the same transfers without an update; 0: not measured
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
  uint64_t process_bytes = 0;  // as the system counts it
  uint64_t tier_bytes = 0;
  uint64_t stream_bytes = 0;  // of --against-io, each way and round
};

// Throws what goes wrong.
StepBenchReport measure_step(const StepPlan& plan, Console& console);

}  // namespace terrace
