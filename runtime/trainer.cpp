#include <terrace/runtime/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/simulated_device.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/loss_scaler.h>
#include <terrace/runtime/parameter_groups.h>
#include <terrace/runtime/pass_timer.h>
#include <terrace/runtime/run_settings.h>
#include <terrace/runtime/weights/architecture.h>
#include <terrace/runtime/weights/load_weights.h>

namespace terrace {
namespace {

// The names in CheckpointInfo::position; docs/checkpoint_format.md says what they hold.
constexpr const char* kDataFingerprint = "data_fingerprint";
constexpr const char* kTrainTokens = "train_tokens";
constexpr const char* kContext = "context";
constexpr const char* kConsumedSamples = "consumed_samples";

// Samples are numbered by the seed and cut by what is compared here; then the count of those consumed says
// where to go on, however they are cut into micro-batches.
void require_same_data(const std::filesystem::path& folder, const CheckpointInfo& saved,
                       const CheckpointInfo& mine) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(
        ErrorKind::config,
        {"cannot resume: the data or the seed differ from those of the checkpoint", folder.string(), reason,
         "give the same --data, --validation-fraction, --context and seed, or start anew without --resume"});
  };
  if (saved.seed != mine.seed) refuse(fmt::format("saved with seed {}, now {}", saved.seed, mine.seed));
  const auto value = [&](const char* name) {
    const auto found = saved.position.find(name);
    if (found == saved.position.end()) refuse(fmt::format("it does not say its \"{}\"", name));
    return found->second;
  };
  if (value(kContext) != mine.position.at(kContext)) {
    refuse(
        fmt::format("saved with samples of {} tokens, now {}", value(kContext), mine.position.at(kContext)));
  }
  if (value(kDataFingerprint) != mine.position.at(kDataFingerprint)) refuse("the files are other ones");
  if (value(kTrainTokens) != mine.position.at(kTrainTokens)) {
    refuse(fmt::format("saved with {} tokens to train on, now {}: another part is held out",
                       value(kTrainTokens), mine.position.at(kTrainTokens)));
  }
  static_cast<void>(value(kConsumedSamples));
}

TrainingSetup set_up(const TrainerOptions& options) {
  Workers workers(options.config.terrace.thread_count);
  return set_up_training(options.config, options.model, workers);
}

// The weights are still those of the step before.
Error out_of_range(const StepReport& report) {
  return Error(
      ErrorKind::cancelled,
      {fmt::format("step {} was not applied", report.step),
       fmt::format("loss {}, gradient norm {}", report.loss, report.gradient_norm),
       "a loss or a gradient is not a finite number",
       "resume from a checkpoint with a lower learning rate, a longer warm-up or gradient clipping"});
}

}  // namespace

struct Trainer::Parts {
  TrainerOptions options;
  Log& log;
  SteadyClock clock;
  Workers workers;
  HostOps ops;
  const TrainingSetup setup;
  const Model* const model;
  const TrainingData& data;
  FlatSpace space;
  SimulatedDevice device;
  Offloader offloader;
  StackArena arena;
  GroupSettings groups;
  std::optional<LossScaler> scaler;  // in fp16 only
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  uint64_t completed = 0;
  uint64_t consumed_samples = 0;

  Parts(const TrainerOptions& given, TrainingSetup planned, const TrainingData& user_data, Log& user_log)
      : options(given),
        log(user_log),
        workers(given.config.terrace.thread_count),
        ops(workers, best_instruction_set()),
        setup(std::move(planned)),
        model(setup.model.get()),
        data(user_data),
        space(setup.tensors, setup.plan.chunk_elements),
        device({setup.offload.device_budget_bytes, given.config.terrace.strict, 0, 0}),
        offloader(space, setup.offload, setup.dry.trace, device, workers, user_log),
        arena(offloader.work_memory()),
        groups(given.config, given.steps),
        tokens(given.config.batch.micro_batch_size * model->config().context),
        targets(tokens.size()) {
    TERRACE_ASSERT(
        data.context() == model->config().context && data.vocabulary() <= model->config().vocabulary,
        fmt::format("samples of {} tokens below {} for {} below {}", data.context(), data.vocabulary(),
                    model->config().context, model->config().vocabulary));
    if (model->options().type == DataType::fp16) scaler.emplace(given.config.fp16);
    set_first_values();
  }

  void set_first_values();
  MicroBatch batch() const {
    return {tokens, targets, options.config.batch.micro_batch_size, model->config().context};
  }

  uint64_t applied_updates() const { return completed - (scaler ? scaler->skipped_steps() : 0); }
  // With which the next step runs. The scale is a number of fp32, so that dividing by it undoes the
  // multiplication.
  float loss_scale() const { return scaler ? static_cast<float>(scaler->scale()) : 1.0f; }
  void run_micro_batches(StepReport& report);
  UpdateResult update(StepReport& report);
  CheckpointInfo info() const;
};

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

uint64_t Trainer::applied_updates() const {
  return parts_->applied_updates();
}

// The report's loss is the mean over them.
void Trainer::Parts::run_micro_batches(StepReport& report) {
  const uint32_t accumulation = options.config.batch.accumulation_steps;
  const float scale = loss_scale() / static_cast<float>(accumulation);
  PassTimer timed(offloader, clock);
  for (uint32_t m = 0; m < accumulation; ++m) {
    timed.begin_micro_batch();
    data.fill(consumed_samples + uint64_t{m} * options.config.batch.micro_batch_size, tokens, targets);
    report.loss += model->train_micro_batch(ops, timed, arena, batch(), scale, micro_batch_prefix(m),
                                            offloader.activations());
    offloader.end_micro_batch();
  }
  report.forward_ns = timed.forward_ns();
  report.loss /= accumulation;
  report.tokens = tokens.size() * accumulation;
}

// Where the loss is not a number its gradients need not be looked at.
UpdateResult Trainer::Parts::update(StepReport& report) {
  const uint64_t number = applied_updates() + 1;
  const std::span<const AdamSettings> settings = groups.at(number - 1);
  report.learning_rate = settings.front().lr;
  report.loss_scale = loss_scale();
  if (!std::isfinite(report.loss)) {
    offloader.abandon_step();
    return {std::numeric_limits<double>::quiet_NaN(), false};
  }
  return offloader.update({settings, number, options.config.gradient_clipping, report.loss_scale});
}

StepReport Trainer::step() {
  Parts& p = *parts_;
  StepReport report;
  report.step = p.completed + 1;
  const OffloadCounters before = p.offloader.counters();
  const uint64_t start = p.clock.now_ns();
  p.offloader.begin_step();
  p.run_micro_batches(report);
  report.forward_backward_ns = p.clock.now_ns() - start;
  const UpdateResult update = p.update(report);
  report.total_ns = p.clock.now_ns() - start;
  report.update_ns = report.total_ns - report.forward_backward_ns;
  report.gradient_norm = update.gradient_norm;
  report.moved = p.offloader.counters() - before;
  report.skipped = !update.applied;
  if (report.skipped && !p.scaler) throw out_of_range(report);
  if (p.scaler) p.scaler->update(report.skipped);
  report.next_loss_scale = p.loss_scale();
  p.completed = report.step;
  p.consumed_samples += report.tokens / p.model->config().context;
  return report;
}

double Trainer::evaluate(uint64_t samples) {
  Parts& p = *parts_;
  const uint32_t batch = p.options.config.batch.micro_batch_size;
  const uint64_t runs = divide_up(std::max<uint64_t>(samples, 1), batch);
  double sum = 0;
  p.offloader.begin_evaluation();
  for (uint64_t r = 0; r < runs; ++r) {
    p.data.fill_validation(r * batch, runs * batch, p.tokens, p.targets);
    sum += p.model->evaluate(p.ops, p.offloader, p.arena, p.batch(), fmt::format("eval{}/", r));
  }
  p.offloader.end_evaluation();
  return sum / static_cast<double>(runs);
}

void Trainer::Parts::set_first_values() {
  if (options.weights.empty()) {
    offloader.initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
      model->initial_values(tensor, first, values);
    });
    return;
  }
  const uint64_t start = clock.now_ns();
  load_weights(WeightFolder(options.weights), *model, offloader);
  log.info(fmt::format("loaded the weights of {} in {}", options.weights.string(),
                       format_duration(clock.now_ns() - start)));
}

CheckpointInfo Trainer::Parts::info() const {
  CheckpointInfo info;
  info.step = completed;
  info.architecture = architecture_text(*model);
  info.type = model->options().type;
  info.seed = model->options().seed;
  info.position = {{kDataFingerprint, data.fingerprint()},
                   {kTrainTokens, data.train_token_count()},
                   {kContext, model->config().context},
                   {kConsumedSamples, consumed_samples}};
  if (scaler) info.loss_scaler = scaler->state();
  info.settings = settings_of(options.config, options.steps);
  return info;
}

std::filesystem::path Trainer::save(const std::filesystem::path& folder) {
  CheckpointInfo info = parts_->info();
  info.model = model_description();
  return save_checkpoint(folder, info, parts_->space, parts_->offloader, parts_->log);
}

ExportReport Trainer::export_weights(const std::filesystem::path& folder, const ExportOptions& options) {
  Parts& p = *parts_;
  return export_model(
      folder, *p.model, options,
      [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) { p.offloader.export_values(wanted, sink); },
      p.log);
}

void Trainer::resume(const std::filesystem::path& folder) {
  Parts& p = *parts_;
  const CheckpointInfo saved = read_checkpoint_info(folder);
  require_same_data(folder, saved, p.info());
  load_checkpoint(folder, model_description(), p.space, p.offloader, p.log);
  for (const std::string& line : changed_settings(saved.settings, p.info().settings)) p.log.info(line);
  p.completed = saved.step;
  p.consumed_samples = saved.position.at(kConsumedSamples);
  if (p.scaler) p.scaler->restore(saved.loss_scaler, folder.string());
}

std::string Trainer::model_description() const {
  return parts_->model->description();
}

const std::vector<TierUse> Trainer::device_ledger() const {
  const MemoryPlan& plan = parts_->setup.plan.memory;
  std::vector<TierUse> uses = {{"activations and workspaces", plan.work_bytes},
                               {"parameters and gradients", plan.device_slots * plan.slot_bytes}};
  if (plan.device_record_slots > 0)
    uses.push_back({"optimizer states", plan.device_record_slots * plan.record_slot_bytes});
  if (plan.device_accumulator_slots > 0) {
    uses.push_back({"gradient accumulators", plan.device_accumulator_slots * plan.accumulator_slot_bytes});
  }
  return uses;
}

uint64_t Trainer::device_peak_bytes() const {
  return parts_->device.peak_bytes();
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
