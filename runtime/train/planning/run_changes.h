// Changes of a run that may let it fit where it does not: where things live, how a batch is cut, how exact
// and how long it is. Each says which options it changes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/transformer/model_config.h>
#include <terrace/runtime/train/planning/ways_out.h>

namespace terrace {

// A run, as much of it as may be changed.
struct ChangeableRun {
  TrainConfig config;
  ModelConfig model;
};

// Two of one kind exclude each other.
enum class ChangeKind {
  placement,
  update_side,
  update,
  order,
  batch,
  activations,
  precision,
  master,
  chunks,
  durability,
  context
};

struct Change {
  ChangeKind kind;
  std::vector<ChangedOption> options;
  std::string effect;  // "states in host memory"
  std::function<void(ChangeableRun&)> apply;
};

// All that change something, of a kind the mildest first; what has the least price comes first of all. States
// and parameters that go to nvme take each other's folders, or where there are none DIR, for which the
// current one stands.
std::vector<Change> possible_changes(const TrainConfig& config, const ModelConfig& model);

std::string effect_of(const std::vector<const Change*>& changes);

}  // namespace terrace
