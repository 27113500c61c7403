// Parameter groups: the optimizer settings of each tensor in each update.
//
// A configuration with n groups of its own makes 2 (n + 1) groups of TensorSpec::group: group i of the
// configuration has 2 i for weights that decay and 2 i + 1 for those that do not (biases and norms), and
// i = n stands for all tensors that no pattern matches. A tensor belongs to the first group that matches the
// name of its weight. For schedulers, whose lists know one entry per group, 2 i and 2 i + 1 are the same
// group where i < n.
//
// Where Muon is the optimizer there are 3 (n + 1) groups, 3 i + 2 for the matrices that it trains
// (is_muon_matrix()), and AdamW updates the others. For schedulers all three are the same group where i < n.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/memory/space/tensor.h>
#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/runtime/config/lr_schedule.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// What a model gives as TensorSpec::group: tensors with decay (two dimensions), and norms and biases without.
inline constexpr uint32_t kDecayGroup = 0;
inline constexpr uint32_t kNoDecayGroup = 1;

// True for what Muon trains: trained matrices, those of adapters too, which are neither embeddings nor the
// output head. These are known by their names.
bool is_muon_matrix(const TensorSpec& tensor);

// Sets the group of every tensor, which before is its model's (kDecayGroup, kNoDecayGroup), and which are
// updated by_matrix. Throws Error(config) for a pattern that matches no weight, naming the nearest names.
void resolve_parameter_groups(const TrainConfig& config, std::span<TensorSpec> tensors);

// The optimizer decides what records contain: with Muon two moments, since AdamW has them.
RecordLayout record_layout(const TrainConfig& config);

class GroupSettings {
 public:
  // `run_updates` is the number of the run's updates. Throws Error(config) when Adam cannot compute one of
  // them.
  GroupSettings(const TrainConfig& config, uint64_t run_updates);

  // Returns the settings of every group in update number `update` (from 0; updates that fp16 skips do not
  // count), valid until the next call. Allocates nothing.
  std::span<const OptimizerSettings> at(uint64_t update);

  const LrSchedule& schedule() const { return schedule_; }

 private:
  struct Group {
    OptimizerSettings settings;
    uint32_t schedule_group;
  };
  LrSchedule schedule_;
  std::vector<Group> groups_;
  std::vector<OptimizerSettings> current_;
};

// Returns a line about an odd schedule for a run of this many updates; empty if nothing is odd.
std::string schedule_warning(const LrScheduleOptions& schedule, uint64_t run_updates);

}  // namespace terrace
