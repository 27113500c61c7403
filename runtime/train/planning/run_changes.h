// Changes of a run that may let it fit: placements, the cut of a batch, precision, and the length of
// sequences. Each says which options it changes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/transformer/model_config.h>
#include <terrace/runtime/train/planning/ways_out.h>

namespace terrace {

// The parts of a run that may change.
struct ChangeableRun {
  TrainConfig config;
  ModelConfig model;
};

// Two changes of one kind exclude each other.
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

// Returns all changes that change something: the cheapest kinds first, and within a kind the mildest first.
// States and parameters that move to nvme take each other's folders. Without any, the option names DIR, for
// which the current folder stands.
std::vector<Change> possible_changes(const TrainConfig& config, const ModelConfig& model);

std::string effect_of(const std::vector<const Change*>& changes);

}  // namespace terrace
