// The plan of a run, training or not: budgets, chunks and slots from a configuration and the run's uses, run
// dry. It allocates nothing but bookkeeping.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/memory/host/machine.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/disk_plan.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/plan/use_trace.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// A budget and its origin.
struct ChosenBudget {
  uint64_t bytes = 0;
  std::string origin;
};

// The decisions that are made before anything is allocated.
struct TrainerPlan {
  ChosenBudget device;
  ChosenBudget host;
  uint64_t chunk_elements = 0;
  std::string chunk_origin;
  uint64_t parameter_count = 0;  // of a coded weight those that its words stand for
  uint64_t trainable_count = 0;
  uint64_t param_bytes = 0;        // all parameters as they are kept, payload
  uint64_t state_bytes = 0;        // master weights and moments as records have them, payload
  uint64_t saved_state_bytes = 0;  // these states in a checkpoint
  std::string engine;              // one line; empty if nothing is on nvme
  double processor_share = 1;      // the processor's share of the update, as the chunks are divided
  MemoryPlan memory;
  std::vector<PathShare> disk;  // shares of the nvme tier
};

// The uses of a run in their order, and the device memory in which it works.
struct DryRun {
  std::vector<TensorUse> trace;
  uint64_t work_bytes = 0;
  uint32_t activation_entries = 0;  // checkpointed activations that leave the work memory
  uint64_t activation_entry_bytes = 0;
  std::vector<uint32_t> activation_get_order = {};  // the order in which they come back
  ComputeFacts device = {};                         // the device of the dry run
};

// Returns the origin of a number of elements: `bound`, of the configuration (0: none), if it allows no more,
// else `otherwise`.
std::string chunk_origin(uint64_t elements, uint64_t bound, const char* otherwise);

// Returns the options that do not depend on budgets.
OffloadOptions offload_options(const TrainConfig& config, const DryRun& dry);

// Fills in the values that the budgets decide; `options`, from offload_options(), is complete afterwards. If
// the device has no memory for the part of the update that rates give it, it takes no part, and
// options.update_rates is cleared. Throws Error(capacity) when the run does not fit.
TrainerPlan make_plan(const TrainConfig& config, const std::vector<TensorSpec>& tensors, const DryRun& dry,
                      OffloadOptions& options);

// Checks that the machine has the memory that a plan takes, a simulated device's included, beside the
// `process_bytes` that this process already takes. Throws Error(capacity) when the kernel would end it, and
// warns when it is close to that, or when other programs hold the memory now.
void require_machine_memory(const TrainerPlan& plan, bool device_has_own_memory, const Machine& machine,
                            uint64_t process_bytes, Log& log);

}  // namespace terrace
