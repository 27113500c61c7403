#include "train/planned_run.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <utility>

#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/memory/host/machine.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/reference/planning/settle.h>
#include <terrace/reference/planning/ways_out.h>
#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/config/nccl_choice.h>
#include <terrace/runtime/observe/monitor/monitor.h>

#include "flags/model_choice.h"
#include "inspect/plan_report.h"
#include "train/drive_wear.h"
#include "train/planning_watch.h"
#include "train/train_prediction.h"
#include "train/train_ranks.h"

namespace terrace {
namespace {

// A run that writes less than this part of what common drives are rated for is not warned of.
constexpr double kLeastWear = 0.01;

void warn_of_wear(const TrainerOptions& options, const PlanPrediction& prediction,
                  std::span<const PathShare> disk, Log& log) {
  const std::string wear =
      wear_warning(drive_writes(options.config, prediction, 0), disk, options.steps, kLeastWear);
  if (!wear.empty()) log.warning(wear);
}

void require_room_on_disks(const TrainerOptions& options, const TrainingSetup& setup) {
  OffloadOptions offload = setup.offload;
  offload.tier_name = options.config.placement.tier_name;
  const uint32_t host =
      options.communicator != nullptr ? options.communicator->places()[options.communicator->rank()].host : 0;
  const DiskNeed need = disk_need(setup.plan.memory, offload, host);
  require_disk_room(setup.plan.memory, offload, need, RankVotes(options.communicator).of_all(need));
}

// The error of a run that does not fit says how it would fit.
TrainingSetup plan_or_refuse(const TrainerOptions& options, const RunStart& start, Log& log) {
  try {
    PlanningWatch watch(log);
    TrainingSetup setup = plan_training(options, &watch.progress());
    if (options.tier_start != TierStart::resume) require_room_on_disks(options, setup);
    return setup;
  } catch (const ShortageError& reason) {
    if (options.tier_start == TierStart::resume) throw;
    if (start.set && reason.tiers().front().tier == "nvme") throw_shortage_beside(reason);
    const TierShortage& first = reason.tiers().front();
    if (options.communicator != nullptr && first.tier == "nvme") {
      ErrorParts parts = reason.parts();
      parts.advice = fmt::format(
          "free {} there, or give the ranks folders on several drives: {{rank}} in nvme_path, or a list",
          format_bytes(first.missing_bytes()));
      throw Error(reason.kind(), parts);
    }
    Workers workers = make_compute_threads(options.config.terrace);
    throw with_ways_out(reason, find_ways_out(reason, options.config, options.model, workers, options.compute,
                                              probe_machine().memory_limit.bytes));
  }
}

}  // namespace

PlannedRun::PlannedRun(TrainFlags& flags, const RunRanks& ranks, LogRecord& said, Console& console)
    : flags_(flags),
      ranks_(ranks),
      said_(said),
      console_(console),
      faults_(flags.inject),
      choice_(flags.data, model_folder(flags)),
      options_(resolve_training(flags, choice_.vocabulary())) {
  settle();
  agree_on_training();
  gather_by_nccl();
  recording_.emplace(flags_, console_);
  choose_where_to_begin();
  make_plan();
  open_files();
  // Measuring takes a while, so it comes after everything that can be refused.
  prediction_ = ranks_.on_first([&] {
    const PlanningWatch watch(console_);
    return predict_training(options_, *setup_, console_);
  });
  if (prediction_) warn_of_wear(options_, *prediction_, plan_.disk, console_);
}

// Text is tokenized when its tokens are first needed.
const TrainingData& PlannedRun::opened_data() {
  if (!data_) data_.emplace(open_training_data(flags_, choice_, options_, console_));
  return *data_;
}

// The configuration as it is on this machine, for this rank.
void PlannedRun::settle() {
  for (const std::string& warning : options_.config.warnings) ranks_.log_of_all().warning(warning);
  if (flags_.epochs > 0) settle_steps(flags_, opened_data(), options_, console_);
  ranks_.take_paths(options_.config);
  check_nvme_folders(options_.config.placement);
  compute_.emplace(options_.config, console_, ranks_.communicator());
  options_.compute = compute_->device();
  options_.config = compute_->settle(options_.config, console_);
  ranks_.apply_to(options_.config);
  options_.communicator = ranks_.communicator();
}

void PlannedRun::agree_on_training() {
  ranks_.agree([&] { return facts_of_run(options_, flags_, opened_data()); });
}

// The ranks have agreed on the configuration, so all of them come here or none.
void PlannedRun::gather_by_nccl() {
  const TrainConfig& config = options_.config;
  if (!gathers_by_nccl(config)) return;
  require_nccl_possible({options_.compute != nullptr, config.batch.hosts,
                         config.terrace.rank_exchange.value_or(RankExchange::symmetric)});
  nccl_.emplace(ranks_, compute_->gpu(), NcclMoves::parameters_and_gradients, console_);
  options_.communicator = &nccl_->communicator();
}

void PlannedRun::choose_where_to_begin() {
  start_ = choose_start(flags_, options_.config, options_.communicator, console_);
  keep_gradient_group(start_, options_.config.batch);
  options_.config.placement.tier_name = start_.tier_name;
  options_.tier_start = start_.commit ? TierStart::resume : TierStart::fresh;
  options_.commit = start_.commit ? start_.commit->commit : 0;
  options_.discard_commits = !start_.commit && start_.discard_commits;
  ranks_.agree([&] { return facts_of_start(start_, flags_); });
}

void PlannedRun::make_plan() {
  setup_ = plan_or_refuse(options_, start_, console_);
  plan_ = setup_->plan;
  const std::string sides = update_sides_text(options_.config, *setup_);
  if (!sides.empty()) console_.info(sides);
  require_machine_memory(plan_, setup_->dry.device.own_memory.has_value(), probe_machine(),
                         current_memory_use().pss_bytes, console_);
}

void PlannedRun::open_files() {
  saves_ = ranks_.on_first([&] { return open_save_folder(flags_, plan_, console_); });
  opened_data();
  if (flags_.resume.empty()) require_empty_monitors(options_.config.monitor);
  log_.emplace(flags_.log, options_.config.logs_lanes ? options_.communicator : nullptr, &said_);
}

std::unique_ptr<Trainer> PlannedRun::make_trainer() {
  if (start_.is_resumed()) options_.weights.clear();  // the state that is gone on from has its own weights
  const auto hang_in = [&](TrainingSetup& used) {
    faults_.apply_to(used.offload, console_);
    used.offload.hooks.step_events = recording_->events();
  };
  std::unique_ptr<Trainer> trainer =
      terrace::make_trainer(start_, options_, std::move(*setup_), *data_, hang_in, console_);
  if (!start_.given_up.empty())
    flags_.fresh ? console_.warning(start_.given_up) : console_.info(start_.given_up);
  if (start_.is_resumed() && trainer->completed_steps() >= options_.steps)
    console_.info(fmt::format("step {} is reached already (--steps {}): there is nothing left to train",
                              trainer->completed_steps(), options_.steps));
  return trainer;
}

}  // namespace terrace
