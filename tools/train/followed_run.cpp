#include "train/followed_run.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/observe/monitor/monitor.h>

#include "command_line.h"

namespace terrace {
namespace {

// What was known before there was a trainer is in the record already. The log has the faults on purpose, so
// that nobody takes such a run for one to keep.
void begin(const FollowedRun::Parts& parts) {
  const uint64_t completed = parts.trainer.completed_steps();
  StepLog& log = parts.run.log();
  RunHeader header = parts.report.record().header();
  header.model = parts.trainer.model_description();
  header.resumed_at_step = completed;
  header.commit_step = parts.trainer.durable_step();
  parts.report.read(log);
  log.start(header);
  for (const std::string& spec : parts.flags.inject) log.fault_on_purpose(completed, spec);
  parts.run.recording().begin(parts.trainer, log, parts.run.options().communicator);
}

StepShape shape_of(const TrainerOptions& options) {
  return {options.config.batch.micro_batches, options.model.layers};
}

}  // namespace

FollowedRun::FollowedRun(const Parts& parts)
    : parts_((begin(parts), parts)),
      shape_(shape_of(parts.run.options())),
      memory_(parts.run.log(), parts.trainer.offloader(),
              [this] { return memory_of(parts_.trainer, parts_.run.plan()); }),
      monitor_(monitor_settings(parts.run.options().config), parts.trainer.consumed_samples(),
               parts.run.start().is_resumed()),
      progress_(parts.flags, parts.run.options().config, parts.report.record(),
                {parts.trainer.offloader().report().watch(), parts.signals, shape_,
                 std::log(parts.run.options().model.vocabulary)},
                parts.console),
      watchdog_(start_watchdog()),
      following_(
          parts.others.follow({parts.trainer.offloader().report().watch(), parts.trainer.completed_steps(),
                               parts.trainer.offloader().commits().are_kept()})),
      control_(start_control()),
      observers_{
          &memory_,   &parts.run.recording(), &parts.run.log(), &parts.run.faults(), &parts.report, &monitor_,
          &progress_, &parts.passed,          &parts.others} {
  if (control_ != nullptr) observers_.insert(observers_.end() - 1, control_.get());
}

// Returns null if it is turned off.
std::unique_ptr<WatchdogThread> FollowedRun::start_watchdog() const {
  constexpr uint64_t kSecondNs = 1'000'000'000;
  constexpr uint64_t kNeverNs = UINT64_MAX;
  const auto in_ns = [](uint64_t seconds) {
    return seconds > kNeverNs / kSecondNs ? kNeverNs : seconds * kSecondNs;
  };
  const TerraceConfig& config = parts_.run.options().config.terrace;
  if (config.stall_warning_seconds == 0 && config.stall_abort_seconds == 0) return nullptr;
  const WatchdogOptions options{
      .warn_after_ns = config.stall_warning_seconds == 0 ? kNeverNs : in_ns(config.stall_warning_seconds),
      .abort_after_ns = in_ns(config.stall_abort_seconds),
      .others = [&others = parts_.others] { return others.who_is_where(); }};
  // The step thread cannot be interrupted in a wait, so nothing can be saved or cleaned up.
  const auto abort = [&console = parts_.console, &others = parts_.others] {
    const std::string reason = "one wait took longer than --stall-abort allows";
    console.end_progress();
    print_error(
        Error(ErrorKind::io,
              {"training was given up", "", reason,
               "look at the disk, the link or the rank that is named above, then go on with --resume auto"}));
    others.give_up(reason);
    std::_Exit(kFailed);
  };
  return std::make_unique<WatchdogThread>(parts_.trainer.offloader().report().watch(), options,
                                          parts_.console, abort);
}

// Returns null if it is turned off.
std::unique_ptr<JobControl> FollowedRun::start_control() const {
  if (parts_.flags.no_control) return nullptr;
  JobControlOptions options;
  options.steps = parts_.flags.steps;
  options.shape = shape_;
  options.stop = [&signals = parts_.signals] { signals.request(); };
  options.ranks = [&others = parts_.others](JobStatus& status) { others.describe(status); };
  Trainer& trainer = parts_.trainer;
  return std::make_unique<JobControl>(
      JobSubject{{trainer.offloader(), trainer.device(), trainer.plan().device.bytes},
                 trainer.model_description(),
                 trainer.completed_steps(),
                 trainer.update_mode(),
                 trainer.durable_step()},
      options, parts_.console);
}

}  // namespace terrace
