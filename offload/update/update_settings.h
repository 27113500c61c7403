// UpdateSettings and UpdateResult: the arguments and the result of an update.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

struct UpdateSettings {
  std::span<const OptimizerSettings> groups;  // by TensorSpec::group
  uint64_t step = 1;                          // counts from 1
  double clip_norm = 0;                       // the largest global gradient norm; 0: no clipping
  double loss_scale = 1;                      // gradients are those of the loss times loss_scale
};

struct UpdateResult {
  double gradient_norm = 0;  // norm of the gradients divided by the loss scale, before clipping
  bool applied = true;       // false: the norm is not finite and nothing was changed
  // during_backward only: a gradient overflowed after part of the step had been applied. The run can only go
  // on by resuming from a commit or a checkpoint.
  bool partly_applied = false;
};

}  // namespace terrace
