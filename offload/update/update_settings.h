// What the caller of an update says, and what it is told.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

struct UpdateSettings {
  std::span<const OptimizerSettings> groups;  // by TensorSpec::group
  uint64_t step = 1;                          // counts from 1
  double clip_norm = 0;                       // the largest global gradient norm; 0 does not clip
  double loss_scale = 1;                      // gradients are those of the loss times this
};

struct UpdateResult {
  double gradient_norm = 0;  // of the gradients divided by the loss scale, before clipping
  bool applied = true;       // false: the norm is not finite and nothing was changed
  // during_backward only: the norm is not finite, and chunks had been updated before that was known. Only
  // resuming from a commit or a checkpoint leads on from here.
  bool partly_applied = false;
};

}  // namespace terrace
