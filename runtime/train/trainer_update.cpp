// The updates of a Trainer: with which settings, when they run, and what a step that is not finite comes to.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include <terrace/runtime/train/internal/trainer_parts.h>

namespace terrace {
namespace {

constexpr double kSecondsPerNs = 1e-9;

UpdateTimes times_of(const StepReport& report) {
  const OffloadCounters& moved = report.moved;
  UpdateTimes times = disk_bytes_of(moved);
  times.forward = kSecondsPerNs * static_cast<double>(report.forward_ns);
  times.backward = kSecondsPerNs * static_cast<double>(report.forward_backward_ns - report.forward_ns);
  times.update = kSecondsPerNs * static_cast<double>(report.update_ns);
  times.disk_wait = kSecondsPerNs * static_cast<double>(moved.update_wait_ns + moved.turn_wait_ns);
  return times;
}

}  // namespace

// The mode that the configuration asks for; where it leaves the choice, the first steps run after backward.
void Trainer::Parts::begin_update_mode() {
  const std::optional<UpdateMode> wanted = options.config.terrace.update;
  if (wanted) {
    offloader.set_update_mode(*wanted);
  } else if (offloader.why_not(UpdateMode::next_forward).empty()) {
    update_choice.emplace(update_rules(options.config, setup));
  }
}

UpdateSettings Trainer::Parts::update_settings() {
  const uint64_t number = applied_updates() + 1;
  return {groups.at(number - 1), number, options.config.gradient_clipping, loss_scale()};
}

// In fp16 a step that overflows must leave everything as it was, with a loss scale of 1 too.
bool Trainer::Parts::applies_as_gradients_land() const {
  return offloader.update_mode() == UpdateMode::during_backward && !scaler &&
         options.config.gradient_clipping == 0;
}

// Before the last micro-batch.
void Trainer::Parts::announce_update() {
  if (offloader.update_mode() != UpdateMode::during_backward) return;
  const UpdateSettings settings = update_settings();
  if (may_announce_update(options.config, settings)) offloader.announce_update(settings);
}

// Where the loss is not a number its gradients need not be looked at, unless they have been applied by now.
UpdateResult Trainer::Parts::update(StepReport& report) {
  const UpdateSettings settings = update_settings();
  report.update_mode = offloader.update_mode();
  report.learning_rate = settings.groups.front().lr;
  report.loss_scale = settings.loss_scale;
  if (std::isfinite(report.loss)) return offloader.update(settings);
  if (!applies_as_gradients_land()) {
    offloader.abandon_step();
    return {std::numeric_limits<double>::quiet_NaN(), false, false};
  }
  UpdateResult result = offloader.update(settings);
  result.partly_applied = result.partly_applied || result.applied;
  result.applied = false;
  return result;
}

void Trainer::Parts::choose_update_mode(const StepReport& report) {
  if (!update_choice || report.skipped) return;
  const std::optional<UpdateChoice::Decision> decision = update_choice->add(report.step, times_of(report));
  if (decision) {
    if (decision->mode != offloader.update_mode()) log.info(decision->reason);
    finish_update_between_steps();
    offloader.set_update_mode(decision->mode);
  }
  if (update_choice->is_done()) update_choice.reset();
}

namespace {

// A sign of what is no number says nothing.
std::string loss_and_norm(const StepReport& report) {
  const auto shown = [](double value) {
    return std::isnan(value) ? std::string("nan") : fmt::format("{}", value);
  };
  return fmt::format("loss {}, gradient norm {}", shown(report.loss), shown(report.gradient_norm));
}

}  // namespace

Error Trainer::Parts::not_applied(const StepReport& report) const {
  return Error(ErrorKind::cancelled,
               {fmt::format("step {} was not applied", report.step), loss_and_norm(report),
                "a loss or a gradient is not a finite number",
                "train with a lower learning rate, a longer warm-up or gradient clipping"});
}

Error Trainer::Parts::applied_in_part(const StepReport& report) const {
  const std::optional<uint64_t> durable = keeper.durable_step();
  return Error(
      ErrorKind::corrupt,
      {fmt::format("step {} was applied in part", report.step), loss_and_norm(report),
       "a gradient that is not a finite number came after others had been applied (terrace.update is "
       "during_backward, without gradient clipping): the weights in memory are of no step",
       fmt::format("resume from {}; clip gradients or set terrace.update to next_forward, which keep such a "
                   "step from being applied",
                   durable ? fmt::format("the commit on nvme, step {}, or a checkpoint", *durable)
                           : "the last checkpoint")});
}

UpdateMode Trainer::update_mode() const {
  return parts_->offloader.update_mode();
}

FinishedUpdate Trainer::finish_update() {
  Parts& p = *parts_;
  const OffloadCounters before = p.offloader.counters();
  p.offloader.finish_update();
  const OffloadCounters moved = p.offloader.counters() - before;
  return {moved.time.total_ns(), moved};
}

}  // namespace terrace
