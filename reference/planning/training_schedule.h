// The schedule of a training step of a model, for `terrace sim`: the uses of a dry run, with times that are
// estimated from sizes. It measures nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/reference/model/transformer/model.h>
#include <terrace/reference/setup/run_plan.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/sim/sim_schedule.h>

namespace terrace {

struct TrainingScheduleOptions {
  uint64_t chunk_elements = uint64_t{1} << 20;  // a multiple of kTileElements
  // An operation takes 2 operations for each element that it reads and each token, 4 in backward.
  double operations_per_second = 1e12;
  // The measured time of each use of the trace; ignored if its length differs.
  std::span<const uint64_t> use_ns = {};
  // The update of a chunk takes the time of all bytes that it reads and writes in host memory.
  double host_bytes_per_second = 10e9;
};

// Returns how many numbers each use computes with (Model::element_counts()).
std::vector<uint64_t> elements_of_uses(const Model& model, std::span<const TensorUse> uses);

// Three tiers: the device (0), host memory (1) and nvme (2). Items are chunks of parameters, gradients and
// records. Parameters and records have their homes on nvme, or in host memory if the configuration places
// them on cpu; gradients have theirs in host memory. The first backward use of a chunk in the step makes its
// gradient and the others change it; an update in host memory follows for each trainable chunk. Activations
// occupy the device, and those that wait on the host occupy host memory, all the time.
SimSchedule training_schedule(const Model& model, const TrainConfig& config, const DryRun& dry,
                              const TrainingScheduleOptions& options);

}  // namespace terrace
