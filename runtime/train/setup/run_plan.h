// How a run, training or not, is cut to the memory it gets: from a configuration and the run's uses, run dry,
// to budgets, chunks and slots. It allocates nothing but bookkeeping.
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
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/compute/compute_device.h>

namespace terrace {

// A budget and where it comes from.
struct ChosenBudget {
  uint64_t bytes = 0;
  std::string origin;
};

// What was decided before anything was allocated.
struct TrainerPlan {
  ChosenBudget device;
  ChosenBudget host;
  uint64_t chunk_elements = 0;
  std::string chunk_origin;
  uint64_t parameter_count = 0;
  uint64_t trainable_count = 0;
  uint64_t param_bytes = 0;        // of all parameters in their precision, payload
  uint64_t state_bytes = 0;        // master weights and moments as records have them, payload
  uint64_t saved_state_bytes = 0;  // the same in a checkpoint
  std::string engine;              // one line; empty when nothing is on nvme
  double processor_share = 1;      // of the update, as the chunks are divided
  MemoryPlan memory;
  std::vector<PathShare> disk;  // of the nvme tier
};

// What a run uses, in which order, and how much device memory it works in.
struct DryRun {
  std::vector<TensorUse> trace;
  uint64_t work_bytes = 0;
  uint32_t activation_entries = 0;  // checkpointed activations that leave the work memory
  uint64_t activation_entry_bytes = 0;
  std::vector<uint32_t> activation_get_order = {};  // in which they come back
  ComputeFacts device = {};                         // where it was run
};

// Why chunks have so many elements: because `bound`, of the configuration (0: none), allows no more, or the
// reason that they have `otherwise`.
std::string chunk_origin(uint64_t elements, uint64_t bound, const char* otherwise);

// All that does not depend on budgets.
OffloadOptions offload_options(const TrainConfig& config, const DryRun& dry);

// Fills in what the budgets decide. `options`, of the function above, is complete afterwards. Where the
// device has no memory for a part in the update that rates give it, it has none, and options.update_rates
// goes. Throws Error(capacity) when the run does not fit.
TrainerPlan make_plan(const TrainConfig& config, const std::vector<TensorSpec>& tensors, const DryRun& dry,
                      OffloadOptions& options);

// Looks whether the machine has what a plan takes of its memory, a simulated device's included, beside the
// `process_bytes` that this process takes as it is. Throws Error(capacity) where the kernel would end it, and
// warns where it is close to that, or where other programs have the memory now.
void require_machine_memory(const TrainerPlan& plan, bool device_has_own_memory, const Machine& machine,
                            uint64_t process_bytes, Log& log);

}  // namespace terrace
