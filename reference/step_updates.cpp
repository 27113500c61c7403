#include <terrace/reference/step_updates.h>

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>

#include <terrace/base/error.h>

namespace terrace {
namespace {

constexpr double kSecondsPerNs = 1e-9;

UpdateTimes times_of(const StepReport& report) {
  const OffloadCounters& moved = report.moved;
  UpdateTimes times = disk_bytes_of(moved);
  times.forward = kSecondsPerNs * static_cast<double>(report.forward_ns);
  times.backward = kSecondsPerNs * static_cast<double>(report.forward_backward_ns - report.forward_ns);
  times.update = kSecondsPerNs * static_cast<double>(report.update_ns);
  times.disk_wait = kSecondsPerNs * static_cast<double>(moved.update_wait_ns);
  return times;
}

// A sign of what is no number says nothing.
std::string loss_and_norm(const StepReport& report) {
  const auto shown = [](double value) {
    return std::isnan(value) ? std::string("nan") : fmt::format("{}", value);
  };
  return fmt::format("loss {}, gradient norm {}", shown(report.loss), shown(report.gradient_norm));
}

Error not_applied(const StepReport& report) {
  return Error(ErrorKind::cancelled,
               {fmt::format("step {} was not applied", report.step), loss_and_norm(report),
                "a loss or a gradient is not a finite number",
                "train with a lower learning rate, a longer warm-up or gradient clipping"});
}

Error applied_in_part(const StepReport& report, std::optional<uint64_t> durable_step) {
  return Error(
      ErrorKind::corrupt,
      {fmt::format("step {} was applied in part", report.step), loss_and_norm(report),
       "a gradient that is not a finite number came after others had been applied (terrace.update is "
       "during_backward, without gradient clipping): the weights in memory are of no step",
       fmt::format("resume from {}; clip gradients or set terrace.update to next_forward, which keep such a "
                   "step from being applied",
                   durable_step ? fmt::format("the commit on nvme, step {}, or a checkpoint", *durable_step)
                                : "the last checkpoint")});
}

}  // namespace

StepUpdates::StepUpdates(Offloader& offloader, RunPosition& state, BetweenSteps& between,
                         const TrainConfig& config, uint64_t run_updates, const WatchedVotes& ranks, Log& log)
    : offloader_(offloader),
      state_(state),
      between_(between),
      config_(config),
      groups_(config, run_updates),
      ranks_(ranks),
      log_(log) {}

void StepUpdates::begin_mode(const UpdateRules& rules) {
  const std::optional<UpdateMode> wanted = config_.terrace.update;
  if (wanted) {
    offloader_.set_update_mode(*wanted);
  } else if (offloader_.why_not(UpdateMode::next_forward).empty()) {
    choice_.emplace(rules);
  }
}

UpdateSettings StepUpdates::settings() {
  const uint64_t number = state_.applied_updates() + 1;
  return {groups_.at(number - 1), number, config_.gradient_clipping, state_.loss_scale()};
}

// In fp16 a step that overflows must leave everything as it was, with a loss scale of 1 too.
bool StepUpdates::applies_as_gradients_land() const {
  return offloader_.update_mode() == UpdateMode::during_backward && !state_.scales_loss() &&
         config_.gradient_clipping == 0;
}

void StepUpdates::announce() {
  if (offloader_.update_mode() != UpdateMode::during_backward) return;
  const UpdateSettings announced = settings();
  if (may_announce_update(config_, announced)) offloader_.announce_update(announced);
}

// Where the loss is not a number its gradients need not be looked at, unless they have been applied by now.
UpdateResult StepUpdates::update(const UpdateSettings& settings, bool loss_is_finite) {
  if (loss_is_finite) return offloader_.update(settings);
  if (!applies_as_gradients_land()) {
    offloader_.abandon_step();
    return {std::numeric_limits<double>::quiet_NaN(), false, false};
  }
  UpdateResult result = offloader_.update(settings);
  result.partly_applied = result.partly_applied || result.applied;
  result.applied = false;
  return result;
}

void StepUpdates::run(StepReport& report, uint64_t samples, std::optional<uint64_t> durable_step) {
  const UpdateSettings used = settings();
  report.update_mode = offloader_.update_mode();
  report.learning_rate = used.groups.front().lr;
  report.loss_scale = used.loss_scale;
  const UpdateResult result = update(used, std::isfinite(report.loss));
  report.gradient_norm = result.gradient_norm;
  report.skipped = !result.applied;
  if (result.partly_applied) throw applied_in_part(report, durable_step);
  if (report.skipped && !state_.scales_loss()) {
    state_.note_unchanged();
    throw not_applied(report);
  }
  state_.count_step(samples, report.skipped);
  report.next_loss_scale = state_.loss_scale();
}

void StepUpdates::choose_mode(const StepReport& report) {
  if (!choice_ || report.skipped) return;
  // The times of the first rank decide for all.
  const UpdateTimes times = ranks_.of_first("the times", times_of(report));
  const std::optional<UpdateChoice::Decision> decision = choice_->add(report.step, times);
  if (decision) {
    if (decision->mode != offloader_.update_mode()) log_.info(decision->reason);
    between_.finish_update();
    offloader_.set_update_mode(decision->mode);
  }
  if (choice_->is_done()) choice_.reset();
}

}  // namespace terrace
