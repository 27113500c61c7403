#include <terrace/reference/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/reference/micro_batches.h>
#include <terrace/reference/model/compute/compute_device.h>
#include <terrace/reference/model/weights/load_weights.h>
#include <terrace/reference/planning/chunk_size.h>
#include <terrace/reference/planning/training_schedule.h>
#include <terrace/reference/rank_setup.h>
#include <terrace/reference/run_identity.h>
#include <terrace/reference/run_position.h>
#include <terrace/reference/step_updates.h>
#include <terrace/runtime/budget/between_steps.h>
#include <terrace/runtime/budget/budget_keeper.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/found_commit.h>
#include <terrace/runtime/checkpoint/ranks_save.h>
#include <terrace/runtime/checkpoint/state_set.h>
#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/config/tier_paths.h>

namespace terrace {
namespace {

TrainingSetup set_up_alone(const TrainerOptions& options, PlanningProgress* progress) {
  Workers workers = make_compute_threads(options.config.terrace);
  TrainConfig config = options.config;
  const bool goes_on = options.tier_start == TierStart::resume;
  if (goes_on) config.terrace.chunk_elements = require_commit(config, options.commit).run.chunk_elements;
  TrainingSetup setup = set_up_with_fastest_chunks(config, options.model, workers, options.compute, progress);
  setup.offload.hooks.clock = options.clock;
  setup.offload.tier_start = options.tier_start;
  setup.offload.discard_commits = options.discard_commits;
  if (goes_on) setup.plan.chunk_origin = "that of the commit which the run goes on from";
  return setup;
}

TrainingSetup set_up(const TrainerOptions& options, PlanningProgress* progress = nullptr) {
  if (options.communicator == nullptr) return set_up_alone(options, progress);
  return set_up_together(options, [&](const TrainerOptions& own) { return set_up_alone(own, progress); });
}

// Before anything is opened.
std::optional<SavedState> commit_to_take_up(const TrainerOptions& options, const FlatSpace& space,
                                            const CheckpointInfo& mine) {
  if (options.tier_start != TierStart::resume) return std::nullopt;
  SavedState found = require_commit(options.config, options.commit);
  // Another model has other tokens, too.
  require_tensors(found.path, found.run, mine.model, space);
  require_same_training(found.run, found.path, mine);
  return found;
}

// The plan knows no device that is in use.
OffloadOptions offload_on(Computing& compute, const TrainingSetup& setup, Communicator* communicator,
                          const std::string& tier_name) {
  OffloadOptions there = setup.offload;
  there.hooks.device_arithmetic = compute.arithmetic();
  there.hooks.communicator = communicator;
  if (communicator != nullptr) there.rank = communicator->rank();
  there.tier_name = tier_name;  // ranks of one host have folders of their own in the same paths
  return there;
}

}  // namespace

// A training run: what it computes with, and what does each part of a step and of the work between two steps.
struct Trainer::Run {
  Run(const TrainerOptions& given, TrainingSetup planned, const TrainingData& user_data, Log& user_log);
  void set_first_values();
  void take_up_commit();

  const TrainerOptions options;
  Log& log;
  SteadyClock steady_clock;
  const Clock& clock;
  Workers workers;
  const TrainingSetup setup;
  const Model& model;
  const TrainingData& data;
  FlatSpace space;
  RunPosition state;
  const std::optional<SavedState> taken_up;  // checked to be of this run
  const RankVotes agreed;                    // before the offloader: ranks that differ make no file
  const std::unique_ptr<Computing> compute;
  const std::unique_ptr<const Ops> dry_ops;
  Offloader offloader;
  const WatchedVotes ranks;
  BetweenSteps between;
  MicroBatches micro_batches;
  StepUpdates updates;
  BudgetKeeper host_budget;
  StateKeeper keeper;
};

Trainer::Run::Run(const TrainerOptions& given, TrainingSetup planned, const TrainingData& user_data,
                  Log& user_log)
    : options(given),
      log(user_log),
      clock(given.clock != nullptr ? *given.clock : steady_clock),
      workers(make_compute_threads(given.config.terrace)),
      setup(std::move(planned)),
      model(*setup.model),
      data(user_data),
      space(setup.tensors, setup.plan.chunk_elements),
      state(run_identity(options.config, options.steps, model, space, data), space.chunk_elements(),
            options.config.fp16),
      taken_up(commit_to_take_up(options, space, state.identity())),
      agreed(agreed_ranks(given.communicator, state.identity())),
      compute(begin_computing(setup.compute, setup.offload.device_budget_bytes, options.config.terrace.strict,
                              workers, processor_products(options.config))),
      dry_ops(make_dry_ops(setup.compute, workers)),
      offloader(space, offload_on(*compute, setup, options.communicator, options.config.placement.tier_name),
                setup.dry.trace, compute->device(), workers, log),
      ranks(agreed, offloader.watch()),
      between(offloader),
      micro_batches(model, data, {compute->ops(), *dry_ops}, offloader, options.config.batch, ranks, clock),
      updates(offloader, state, between, options.config, options.steps, ranks, log),
      host_budget(offloader, between, log),
      keeper(offloader, {offloader, space, own_tier_paths(options.config.placement), ranks},
             {options.config.terrace.commit_every_steps, options.config.terrace.commit_every_seconds, clock},
             ranks, log) {
  if (options.config.terrace.memory_pressure && setup.offload.states == Placement::nvme)
    host_budget.watch(options.system_root, clock);
  if (taken_up) {
    take_up_commit();
  } else {
    set_first_values();
  }
  updates.begin_mode(update_rules(options.config, setup));
  state.set_run_id(ranks.of_first("the number of the run", state.identity().run_id));
}

void Trainer::Run::set_first_values() {
  if (options.weights.empty()) {
    ProgressReport progress(log, "making the first weights", model.parameter_count() * sizeof(float));
    offloader.state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
      model.initial_values(tensor, first, values);
      progress.add(values.size_bytes());
    });
    return;
  }
  const uint64_t start = clock.now_ns();
  load_weights(WeightFolder(options.weights), model, offloader, log);
  log.info(fmt::format("loaded the weights of {} in {}", options.weights.string(),
                       format_duration(clock.now_ns() - start)));
}

// The offloader has the state already.
void Trainer::Run::take_up_commit() {
  if (offloader.commits().taken_up_info() != commit_info_text(taken_up->run)) {
    throw Error(ErrorKind::io, {"cannot go on from the commit on nvme", taken_up->path.string(),
                                "another job changed it meanwhile", "start again when that job has ended"});
  }
  const CheckpointInfo& saved = taken_up->run;
  state.go_on_from(saved, taken_up->path.string(), log);
  keeper.took_up(saved.step);
  log.info(fmt::format("resumed at step {} in place, from commit {} ({})", saved.step, taken_up->commit,
                       taken_up->path.string()));
}

Trainer::Trainer(const TrainerOptions& options, const TrainingData& data, Log& log)
    : Trainer(options, set_up(options), data, log) {}
Trainer::Trainer(const TrainerOptions& options, TrainingSetup setup, const TrainingData& data, Log& log)
    : run_(std::make_unique<Run>(options, std::move(setup), data, log)) {}
Trainer::~Trainer() = default;

const TrainerPlan& Trainer::plan() const {
  return run_->setup.plan;
}
const TrainingData& Trainer::data() const {
  return run_->data;
}
Offloader& Trainer::offloader() {
  return run_->offloader;
}
const FlatSpace& Trainer::space() const {
  return run_->space;
}
uint64_t Trainer::completed_steps() const {
  return run_->state.completed_steps();
}
uint64_t Trainer::consumed_samples() const {
  return run_->state.consumed_samples();
}
uint64_t Trainer::applied_updates() const {
  return run_->state.applied_updates();
}
uint64_t Trainer::run_id() const {
  return run_->state.identity().run_id;
}
bool Trainer::has_whole_state() const {
  return run_->state.counts_are_of_weights() && run_->offloader.has_whole_state();
}

StepReport Trainer::step() {
  Run& r = *run_;
  StepReport report;
  report.step = r.state.completed_steps() + 1;
  StepEvents* const events = r.setup.offload.hooks.step_events;
  if (events != nullptr) events->begin_step(report.step);
  const OffloadCounters before = r.offloader.report().counters();
  r.offloader.begin_step();
  r.state.begin_step();
  const MicroBatches::Result computed =
      r.micro_batches.run(r.state.consumed_samples(), r.state.loss_scale(), [&] { r.updates.announce(); });
  r.offloader.compare_ranks(report.step);
  report.loss = computed.loss;
  report.tokens = computed.tokens;
  report.forward_ns = computed.forward_ns;
  report.forward_backward_ns = (r.offloader.time().parts() - before.time).total_ns();
  r.updates.run(report, computed.samples, r.keeper.durable_step());
  report.samples = r.state.consumed_samples();
  const OffloadCounters kept = r.between.take();
  report.moved = r.offloader.report().counters() - before + kept;
  if (events != nullptr) events->end_step();
  report.total_ns = report.moved.time.total_ns();
  report.keeping_ns = kept.time.total_ns();
  report.update_ns = report.total_ns - report.keeping_ns - report.forward_backward_ns;
  r.updates.choose_mode(report);
  return report;
}

UpdateMode Trainer::update_mode() const {
  return run_->offloader.update_mode();
}

FinishedUpdate Trainer::finish_update() {
  Offloader& offloader = run_->offloader;
  const OffloadCounters before = offloader.report().counters();
  offloader.finish_update();
  const OffloadCounters moved = offloader.report().counters() - before;
  return {moved.time.total_ns(), moved};
}

bool Trainer::any_rank(bool mine) const {
  return run_->ranks.any("the next step", mine);
}
bool Trainer::first_rank(bool mine) const {
  return run_->ranks.of_first("the next step", mine);
}

double Trainer::evaluate(uint64_t samples) {
  Run& r = *run_;
  const uint32_t batch = r.options.config.batch.micro_batch_size;
  const uint64_t runs = divide_up(std::max<uint64_t>(samples, 1), batch);
  double sum = 0;
  r.between.finish_update();
  r.offloader.begin_evaluation();
  ProgressReport progress(r.log, fmt::format("evaluating step {}", completed_steps()), runs * batch,
                          "sequences");
  for (uint64_t number = 0; number < runs; number += r.ranks.count()) {
    sum += r.micro_batches.evaluate(number, runs);
    progress.add(batch * std::min<uint64_t>(r.ranks.count(), runs - number));
  }
  r.offloader.end_evaluation();
  return sum / static_cast<double>(runs);
}

HostBudgetChange Trainer::set_host_budget(uint64_t bytes) {
  return run_->host_budget.set(bytes);
}
bool Trainer::look_after_memory() {
  return run_->host_budget.look();
}

KeptState Trainer::look_after_state() {
  Run& r = *run_;
  return r.between.keep(
      [&] { return r.keeper.look_after(completed_steps(), [&] { return r.state.info(); }); });
}
KeptState Trainer::begin_commit(bool retain) {
  Run& r = *run_;
  const auto describe = [&] { return r.state.info(); };
  return r.between.keep([&] { return r.keeper.begin_commit(completed_steps(), describe, retain); });
}
KeptState Trainer::finish_commit() {
  return run_->between.keep([&] { return run_->keeper.finish_commit(); });
}
std::optional<uint64_t> Trainer::durable_step() const {
  return run_->keeper.durable_step();
}
bool Trainer::copies_commits() const {
  return run_->keeper.copies_commits();
}
KeptState Trainer::begin_save(const CheckpointFolder& folder) {
  Run& r = *run_;
  const auto describe = [&] { return r.state.info(); };
  return r.between.keep([&] {
    if (copies_commits()) return r.keeper.begin_save(&folder, completed_steps(), describe);
    return KeptState{{}, SavedCheckpoint{completed_steps(), save(folder)}};
  });
}
KeptState Trainer::follow_begin_save() {
  Run& r = *run_;
  const auto describe = [&] { return r.state.info(); };
  return r.between.keep([&] {
    if (copies_commits()) return r.keeper.begin_save(nullptr, completed_steps(), describe);
    follow_save();
    return KeptState{};
  });
}
void Trainer::follow_save() {
  Run& r = *run_;
  r.between.finish_update();
  r.between.keep([&] {
    terrace::follow_save(r.offloader, r.space, r.ranks);
    return KeptState{};
  });
}
KeptState Trainer::finish_save() {
  return run_->between.keep([&] { return run_->keeper.finish_save(); });
}

std::filesystem::path Trainer::save(const CheckpointFolder& folder) {
  Run& r = *run_;
  r.between.finish_update();
  if (r.ranks.count() > 1) return save_of_ranks(folder, r.state.info(), r.space, r.offloader, r.ranks, r.log);
  return save_checkpoint(folder, r.state.info(), r.space, r.offloader, r.log);
}

ExportReport Trainer::export_weights(const std::filesystem::path& folder, const ExportOptions& options) {
  Run& r = *run_;
  r.between.finish_update();
  if (r.ranks.count() == 1)
    return export_model(
        folder, r.model, r.space.tensors(), options,
        [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) {
          r.offloader.state().export_values(wanted, sink);
        },
        r.log);
  RanksSource source(r.offloader, r.space, r.ranks);
  const auto values = [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) {
    source.read_values(wanted, sink);
  };
  return source.read_by(
      [&] { return export_model(folder, r.model, r.space.tensors(), options, values, r.log); });
}

void Trainer::require_resumable(const std::filesystem::path& folder, const TrainerOptions& options,
                                const TrainingSetup& setup, const TrainingData& data) {
  const FlatSpace space(setup.tensors, setup.plan.chunk_elements);
  const CheckpointInfo mine = run_identity(options.config, options.steps, *setup.model, space, data);
  require_same_training(read_checkpoint_info(folder), folder, mine);
  require_loadable_checkpoint(folder, mine.model, space, setup.plan.memory.record_layout);
}

void Trainer::resume(const StateSet& set) {
  Run& r = *run_;
  const SavedState& saved = *set.newest();
  require_same_training(saved.run, saved.path, r.state.identity());
  load_state_set(set, model_description(), r.space, r.offloader, r.log);
  r.state.go_on_from(saved.run, saved.path.string(), r.log);
}

void Trainer::resume(const std::filesystem::path& folder) {
  Run& r = *run_;
  const CheckpointInfo saved = read_checkpoint_info(folder);
  require_same_training(saved, folder, r.state.identity());
  load_checkpoint(folder, model_description(), r.space, r.offloader, r.log);
  r.state.go_on_from(saved, folder.string(), r.log);
}

std::string Trainer::model_description() const {
  return run_->model.description();
}

SimSchedule Trainer::recorded_schedule() const {
  const Run& r = *run_;
  TrainingScheduleOptions recorded;
  recorded.chunk_elements = r.space.chunk_elements();
  recorded.use_ns = r.micro_batches.use_ns();
  return training_schedule(r.model, r.options.config, r.setup.dry, recorded);
}

const Device& Trainer::device() const {
  return run_->compute->device();
}

TrainingSetup plan_training(const TrainerOptions& options, PlanningProgress* progress) {
  const GroupSettings checked(options.config, options.steps);  // throws where the run cannot be computed
  static_cast<void>(checked);
  TrainingSetup setup = set_up(options, progress);
  if (!options.weights.empty()) {
    // Throws what is wrong with them.
    WeightSource(WeightFolder(options.weights), setup.model->weights(), setup.model->tensors());
  }
  return setup;
}

}  // namespace terrace
