// The schedule of a training step of a model, for sim: what a dry run says that it uses, with times
// that are estimated from sizes. It measures nothing.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/transformer/model.h>
#include <terrace/runtime/train/setup/run_plan.h>
#include <terrace/sim/sim_schedule.h>

namespace terrace {

struct TrainingScheduleOptions {
  uint64_t chunk_elements = uint64_t{1} << 20;  // a multiple of kTileElements
  // What an operation takes: 2 operations for each element that it reads and each token, in backward 4.
  double operations_per_second = 1e12;
  // Of each use of the trace, where it was measured; of another length: not.
  std::span<const uint64_t> use_ns = {};
  // What the update of a chunk takes: all bytes that it reads and writes in host memory.
  double host_bytes_per_second = 10e9;
};

// Three tiers: the device (0), host memory (1) and nvme (2). Items are chunks of parameters, gradients and
// records. Parameters and records have their homes on nvme, or in host memory where the configuration places
// them on cpu; gradients in host memory. A gradient is made by the first backward use of its chunk in the
// step and changed by the others; an update in host memory follows for each trainable chunk. Activations
// occupy the device, and those that rest on the host occupy that, all the time.
SimSchedule training_schedule(const Model& model, const TrainConfig& config, const DryRun& dry,
                              const TrainingScheduleOptions& options);

}  // namespace terrace
