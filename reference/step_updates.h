// StepUpdates: the update of each step: its settings, its time, its result for a step that is not finite, and
// the count of its outcome. It must never touch a gradient itself.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/base/log.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/watch/watched_votes.h>
#include <terrace/reference/planning/update_choice.h>
#include <terrace/reference/run_position.h>
#include <terrace/runtime/budget/between_steps.h>
#include <terrace/runtime/config/parameter_groups.h>
#include <terrace/runtime/observe/run_reports.h>

namespace terrace {

class StepUpdates {
 public:
  // The run has `run_updates` updates. All references outlive this; `between` is of the same offloader.
  StepUpdates(Offloader& offloader, RunPosition& state, BetweenSteps& between, const TrainConfig& config,
              uint64_t run_updates, const WatchedVotes& ranks, Log& log);

  // Call before the first step: sets the mode that the configuration asks for. If the configuration leaves
  // the choice, the first steps run after backward, and `rules` judge their times.
  void begin_mode(const UpdateRules& rules);
  // Call before the last micro-batch goes backward.
  void announce();
  // Applies the update of the step with this loss and these samples, counts the step, and fills in their part
  // of the report. Outside of fp16 it throws when the loss or a gradient is not finite: Error(cancelled) if
  // the step has changed nothing, Error(corrupt) if it has. `durable_step` is for the advice.
  void run(StepReport& report, uint64_t samples, std::optional<uint64_t> durable_step);
  // Call after a step whose report is complete: it may set another mode for later steps.
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
  const WatchedVotes& ranks_;
  Log& log_;
  std::optional<UpdateChoice> choice_;  // set until the mode of the update is decided
};

}  // namespace terrace
