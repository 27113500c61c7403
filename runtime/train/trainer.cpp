#include <terrace/runtime/train/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/model/weights/load_weights.h>
#include <terrace/runtime/train/internal/trainer_parts.h>
#include <terrace/runtime/train/pass_timer.h>
#include <terrace/runtime/train/planning/chunk_size.h>
#include <terrace/runtime/train/planning/dry_training.h>
#include <terrace/runtime/train/planning/training_schedule.h>

namespace terrace {
namespace {

TrainingSetup set_up(const TrainerOptions& options) {
  Workers workers = make_compute_threads(options.config.terrace);
  TrainConfig config = options.config;
  const bool goes_on = options.tier_start == TierStart::resume;
  if (goes_on) config.terrace.chunk_elements = require_epoch(config).info.chunk_elements;
  TrainingSetup setup = set_up_with_fastest_chunks(config, options.model, workers, options.compute);
  setup.offload.hooks.clock = options.clock;
  setup.offload.tier_start = options.tier_start;
  setup.offload.discard_epochs = options.discard_epochs;
  if (goes_on) setup.plan.chunk_origin = "that of the commit which the run goes on from";
  return setup;
}

}  // namespace

Trainer::Parts::Parts(const TrainerOptions& given, TrainingSetup planned, const TrainingData& user_data,
                      Log& user_log)
    : options(given),
      log(user_log),
      clock(given.clock != nullptr ? *given.clock : steady_clock),
      workers(make_compute_threads(given.config.terrace)),
      setup(std::move(planned)),
      model(setup.model.get()),
      data(user_data),
      space(setup.tensors, setup.plan.chunk_elements),
      taken_up(epoch_to_take_up()),
      compute(begin_computing(setup.compute, setup.offload.device_budget_bytes, given.config.terrace.strict,
                              workers)),
      ops(compute->ops()),
      offloader(space, offload_there(), setup.dry.trace, compute->device(), workers, user_log),
      arena(offloader.work_memory()),
      groups(given.config, given.steps),
      tokens(given.config.batch.micro_batch_size * model->config().context),
      targets(tokens.size()),
      layer_major(given.config.batch, tokens.size()),
      keeper(offloader, space,
             {given.config.terrace.commit_every_steps, given.config.terrace.commit_every_seconds, clock},
             log) {
  TERRACE_ASSERT(data.context() == model->config().context && data.vocabulary() <= model->config().vocabulary,
                 fmt::format("samples of {} tokens below {} for {} below {}", data.context(),
                             data.vocabulary(), model->config().context, model->config().vocabulary));
  if (model->options().type == DataType::fp16) scaler.emplace(given.config.fp16);
  if (given.config.terrace.memory_pressure && setup.offload.states == Placement::nvme) {
    pressure.emplace(given.system_root, clock);
    wanted_host_bytes = offloader.budget().in_force();
    wanted_chunks = offloader.budget().resident_chunks();
  }
  if (taken_up) {
    take_up_epoch();
  } else {
    set_first_values();
  }
  begin_update_mode();
}

// The plan knows no device that is in use.
OffloadOptions Trainer::Parts::offload_there() const {
  OffloadOptions there = setup.offload;
  there.hooks.device_arithmetic = compute->arithmetic();
  return there;
}

Trainer::Trainer(const TrainerOptions& options, const TrainingData& data, Log& log)
    : Trainer(options, set_up(options), data, log) {}
Trainer::Trainer(const TrainerOptions& options, TrainingSetup setup, const TrainingData& data, Log& log)
    : parts_(std::make_unique<Parts>(options, std::move(setup), data, log)) {}
Trainer::~Trainer() = default;

const TrainerPlan& Trainer::plan() const {
  return parts_->setup.plan;
}
const TrainingData& Trainer::data() const {
  return parts_->data;
}
Offloader& Trainer::offloader() {
  return parts_->offloader;
}
const FlatSpace& Trainer::space() const {
  return parts_->space;
}
uint64_t Trainer::completed_steps() const {
  return parts_->completed;
}
uint64_t Trainer::consumed_samples() const {
  return parts_->consumed_samples;
}

bool Trainer::has_whole_state() const {
  return parts_->counts_are_of_weights && parts_->offloader.has_whole_state();
}

uint64_t Trainer::applied_updates() const {
  return parts_->applied_updates();
}

LayerMajorTokens::LayerMajorTokens(const BatchConfig& batch, size_t tokens_each) {
  if (!batch.layer_major) return;
  tokens.resize(batch.accumulation_steps * tokens_each);
  targets.resize(tokens.size());
  prefixes = micro_batch_prefixes(batch);
  const uint32_t sequence = static_cast<uint32_t>(tokens_each / batch.micro_batch_size);
  for (uint32_t m = 0; m < batch.accumulation_steps; ++m) {
    runs.push_back(
        {{std::span(tokens).subspan(m * tokens_each, tokens_each),
          std::span(targets).subspan(m * tokens_each, tokens_each), batch.micro_batch_size, sequence},
         prefixes[m]});
  }
}

// The report's loss is the mean over them.
void Trainer::Parts::run_micro_batches(StepReport& report) {
  const uint32_t accumulation = options.config.batch.accumulation_steps;
  const float scale = loss_scale() / static_cast<float>(accumulation);
  use_ns.clear();
  PassTimer timed(offloader, clock, use_ns);
  if (layer_major.runs.empty()) {
    run_in_turn(report, timed, scale);
  } else {
    run_together(report, timed, scale);
  }
  report.forward_ns = timed.forward_ns();
  report.loss /= accumulation;
  report.tokens = tokens.size() * accumulation;
}

void Trainer::Parts::run_in_turn(StepReport& report, PassTimer& timed, float scale) {
  const uint32_t accumulation = options.config.batch.accumulation_steps;
  for (uint32_t m = 0; m < accumulation; ++m) {
    timed.begin_micro_batch();
    if (m + 1 == accumulation) announce_update();
    data.fill(consumed_samples + uint64_t{m} * options.config.batch.micro_batch_size, tokens, targets);
    {
      // Operations without a lease compute too; what the offloader does in between it says itself.
      const TimeScope computing(offloader.time(), TimeCause::compute);
      report.loss += model->train_micro_batch(ops, timed, arena, batch(), scale, micro_batch_prefix(m),
                                              offloader.activations());
    }
    offloader.end_micro_batch();
  }
}

void Trainer::Parts::run_together(StepReport& report, PassTimer& timed, float scale) {
  timed.begin_micro_batch();
  announce_update();
  const uint32_t samples = options.config.batch.micro_batch_size;
  for (size_t m = 0; m < layer_major.runs.size(); ++m) {
    data.fill(consumed_samples + m * samples,
              std::span(layer_major.tokens).subspan(m * tokens.size(), tokens.size()),
              std::span(layer_major.targets).subspan(m * tokens.size(), tokens.size()));
  }
  {
    const TimeScope computing(offloader.time(), TimeCause::compute);
    model->train_layer_major(ops, timed, arena, layer_major.runs, scale, offloader.activations());
  }
  offloader.end_micro_batch();
  for (const MicroBatchRun& run : layer_major.runs) report.loss += run.loss;
}

// Right behind the update: whatever fails after this, the state that is kept has the right number.
void Trainer::Parts::count_step(const StepReport& report, const UpdateResult& update) {
  if (update.partly_applied) throw applied_in_part(report);
  counts_are_of_weights = !update.applied;
  if (report.skipped && !scaler) throw not_applied(report);
  if (scaler) scaler->update(report.skipped);
  completed = report.step;
  consumed_samples += report.tokens / model->config().context;
  counts_are_of_weights = true;
}

StepReport Trainer::step() {
  Parts& p = *parts_;
  StepReport report;
  report.step = p.completed + 1;
  StepEvents* const events = p.setup.offload.hooks.step_events;
  if (events != nullptr) events->begin_step(report.step);
  const OffloadCounters before = p.offloader.counters();
  p.offloader.begin_step();
  p.counts_are_of_weights = false;
  p.run_micro_batches(report);
  report.forward_backward_ns = (p.offloader.time().parts() - before.time).total_ns();
  const UpdateResult update = p.update(report);
  report.gradient_norm = update.gradient_norm;
  report.skipped = !update.applied;
  p.count_step(report, update);
  report.moved = p.offloader.counters() - before + p.kept_moved;
  if (events != nullptr) events->end_step();
  report.total_ns = report.moved.time.total_ns();
  report.keeping_ns = p.kept_moved.time.total_ns();
  report.update_ns = report.total_ns - report.keeping_ns - report.forward_backward_ns;
  p.kept_moved = {};
  report.next_loss_scale = p.loss_scale();
  p.choose_update_mode(report);
  return report;
}

double Trainer::evaluate(uint64_t samples) {
  Parts& p = *parts_;
  const uint32_t batch = p.options.config.batch.micro_batch_size;
  const uint64_t runs = divide_up(std::max<uint64_t>(samples, 1), batch);
  double sum = 0;
  p.finish_update_between_steps();
  p.offloader.begin_evaluation();
  ProgressReport progress(p.log, fmt::format("evaluating step {}", p.completed), runs * batch, "sequences");
  for (uint64_t r = 0; r < runs; ++r) {
    p.data.fill_validation(r * batch, runs * batch, p.tokens, p.targets);
    sum += p.model->evaluate(p.ops, p.offloader, p.arena, p.batch(), fmt::format("eval{}/", r));
    progress.add(batch);
  }
  p.offloader.end_evaluation();
  return sum / static_cast<double>(runs);
}

void Trainer::Parts::set_first_values() {
  if (options.weights.empty()) {
    ProgressReport progress(log, "making the first weights", model->parameter_count() * sizeof(float));
    offloader.state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
      model->initial_values(tensor, first, values);
      progress.add(values.size_bytes());
    });
    return;
  }
  const uint64_t start = clock.now_ns();
  load_weights(WeightFolder(options.weights), *model, offloader, log);
  log.info(fmt::format("loaded the weights of {} in {}", options.weights.string(),
                       format_duration(clock.now_ns() - start)));
}

std::string Trainer::model_description() const {
  return parts_->model->description();
}

SimSchedule Trainer::recorded_schedule() const {
  const Parts& p = *parts_;
  TrainingScheduleOptions recorded;
  recorded.chunk_elements = p.space.chunk_elements();
  recorded.use_ns = p.use_ns;
  return training_schedule(*p.model, p.options.config, p.setup.dry, recorded);
}

const std::vector<TierUse> Trainer::device_ledger() const {
  return terrace::device_ledger(parts_->setup.plan.memory);
}

uint64_t Trainer::device_peak_bytes() const {
  return parts_->compute->device().peak_bytes();
}

TrainingSetup plan_training(const TrainerOptions& options) {
  const GroupSettings checked(options.config, options.steps);  // throws where the run cannot be computed
  static_cast<void>(checked);
  TrainingSetup setup = set_up(options);
  if (!options.weights.empty()) {
    // Throws what is wrong with them.
    WeightSource(WeightFolder(options.weights), setup.model->weights(), setup.model->tensors());
  }
  return setup;
}

}  // namespace terrace
