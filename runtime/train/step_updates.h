// StepUpdates: the update of each step: with which settings, when it runs, what a step that is not finite
// comes to, and how its outcome is counted. It must never touch a gradient itself.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/base/log.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/train/between_steps.h>
#include <terrace/runtime/train/planning/update_choice.h>
#include <terrace/runtime/train/run_position.h>
#include <terrace/runtime/train/setup/parameter_groups.h>
#include <terrace/runtime/train/trainer_reports.h>

namespace terrace {

class StepUpdates {
 public:
  // Of a run of `run_updates` updates. All references outlive this; `between` is of the same offloader.
  StepUpdates(Offloader& offloader, RunPosition& state, BetweenSteps& between, const TrainConfig& config,
              uint64_t run_updates, Log& log);

  // Before the first step: sets the mode that the configuration asks for. Where that leaves the choice, the
  // first steps run after backward and `rules` say what they show.
  void begin_mode(const UpdateRules& rules);
  // Before the last micro-batch goes backward.
  void announce();
  // Applies the update of the step whose loss and samples these are, counts the step, and fills in what the
  // report says of both. Throws Error(cancelled) when the loss or a gradient is not finite, outside of fp16:
  // the step has changed nothing then; and Error(corrupt) when it has. `durable_step` is for the advice.
  void run(StepReport& report, uint64_t samples, std::optional<uint64_t> durable_step);
  // After a step whose report is complete: may set another mode for those that follow.
  void choose_mode(const StepReport& report);

 private:
  UpdateSettings settings();
  bool applies_as_gradients_land() const;
  UpdateResult update(const UpdateSettings& settings, bool loss_is_finite);

  Offloader& offloader_;
  RunPosition& state_;
  BetweenSteps& between_;
  const TrainConfig& config_;
  GroupSettings groups_;
  Log& log_;
  std::optional<UpdateChoice> choice_;  // until the mode of the update is decided
};

}  // namespace terrace
