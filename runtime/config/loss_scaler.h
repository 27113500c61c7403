// LossScaler: the factor on the loss that keeps fp16 gradients between underflow and overflow, and its
// changes from step to step. It is a state machine over outcomes of steps: it must never look at a gradient,
// a clock or a log.
//
// The arithmetic is DeepSpeed's (runtime/fp16/loss_scaler.py), so that a run with the same overflows has the
// same scales:
//
//   overflow, hysteresis above 1   hysteresis = hysteresis - 1
//   overflow, hysteresis at 1      scale = max(scale / 2, min_loss_scale); an error when it is there already
//   no overflow                    when the good steps since the last overflow, this one not counted, are a
//                                  whole multiple of loss_scale_window and not none: scale = scale * 2 and
//                                  hysteresis refilled; with consecutive_hysteresis every such step refills
//                                  hysteresis
//
// So the first doubling comes with the good step after loss_scale_window good ones. A static scale
// (loss_scale above 0) never changes. Steps that overflow are skipped all the same, and ten of them in a row
// are an error, unlike in DeepSpeed: training would make no progress for ever.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <terrace/runtime/config/train_config.h>

namespace terrace {

struct LossScaleState {
  double scale = 1;
  uint32_t hysteresis = 1;
  uint64_t good_steps = 0;  // steps without overflow since the last one, or since the start
  uint64_t skipped_steps = 0;
  uint32_t skipped_in_a_row = 0;
};

class LossScaler {
 public:
  // Throws Error(config) when the initial scale is not a positive number of fp32.
  explicit LossScaler(const Fp16Config& options);

  double scale() const { return now_.scale; }
  uint64_t skipped_steps() const { return now_.skipped_steps; }
  const LossScaleState& now() const { return now_; }

  // Takes the outcome of a step. Throws Error(cancelled), and changes nothing, when the scale would have to
  // go below its minimum, or when a static one was too large for ten steps in a row.
  void update(bool overflow);

  // Restores a state. A static scale stays the configured one, and hysteresis is at most the configured one.
  // Throws Error(corrupt) naming `origin` when a number is meaningless.
  void restore(const LossScaleState& state, const std::string& origin);

  // The state as whole numbers by name, for checkpoints (docs/checkpoint_format.md).
  std::map<std::string, uint64_t> state() const;
  // Restores such a state; the steps that were skipped in a row count from 0. Throws Error(corrupt) too when
  // a number is missing.
  void restore(const std::map<std::string, uint64_t>& state, const std::string& origin);

 private:
  bool is_static() const { return options_.loss_scale > 0; }

  Fp16Config options_;
  LossScaleState now_;
};

}  // namespace terrace
