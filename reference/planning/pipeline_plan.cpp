#include <terrace/reference/planning/pipeline_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/reference/planning/chunk_size.h>

namespace terrace {
namespace {

// As python/terrace/pipe sends them: a head with every message, and values of tables in parts.
constexpr uint64_t kHeadBytes = 4096;
constexpr uint64_t kValuePartElements = 4 << 20;

uint64_t activation_bytes(const TrainConfig& config, const ModelConfig& model) {
  return uint64_t{config.batch.micro_batch_size} * model.context * model.width * bytes_of(config.precision);
}

// Of a table that the first and the last stage have; 0: there is none.
uint64_t tied_bytes(const PipelinePlan& plan, const TrainConfig& config) {
  const ModelConfig& model = plan.stages.front().part.model;
  if (!model.part->ties_across) return 0;
  return uint64_t{model.vocabulary} * model.width * bytes_of(config.precision);
}

uint64_t tied_value_bytes(const PipelinePlan& plan, const TrainConfig& config) {
  const uint64_t bytes = tied_bytes(plan, config);
  return bytes + divide_up(bytes / bytes_of(config.precision), kValuePartElements) * kHeadBytes;
}

void add_messages(const TrainConfig& config, const ModelConfig& model, PipelinePlan& plan) {
  const auto count = static_cast<uint32_t>(plan.stages.size());
  const uint64_t activation = activation_bytes(config, model), rounds = plan.shape.micro_batches;
  const uint64_t table = tied_bytes(plan, config), values = table > 0 ? tied_value_bytes(plan, config) : 0;
  const auto send = [&](uint32_t from, uint32_t to, uint64_t bytes) {
    StageMessages& out = plan.stages[from].messages;
    StageMessages& in = plan.stages[to].messages;
    out.out_bytes += bytes, in.in_bytes += bytes;
    if (plan.shape.host_of(from) == plan.shape.host_of(to)) return;
    out.network_out_bytes += bytes, in.network_in_bytes += bytes;
  };
  for (uint32_t s = 0; s + 1 < count; ++s) {
    plan.stages[s].messages.activation_bytes = plan.stages[s + 1].messages.gradient_bytes = activation;
    send(s, s + 1, rounds * (activation + kHeadBytes));
    send(s + 1, s, rounds * (activation + kHeadBytes));
  }
  if (table == 0) return;
  for (const uint32_t end : {0u, count - 1}) plan.stages[end].messages.tied_bytes = table;
  send(count - 1, 0, rounds * (table + kHeadBytes));
  send(0, count - 1, values);
}

// Of what one host gets or sends, by stages and by what their data ranks exchange.
uint64_t busiest_host(const PipelinePlan& plan) {
  std::vector<uint64_t> in(plan.shape.ranks()), out(plan.shape.ranks());
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    const PlannedStage& stage = plan.stages[s];
    const OffloadCounters& moved = stage.prediction.step;
    const uint32_t host = plan.shape.host_of(s), ranks = plan.shape.ranks_together();
    in[host] +=
        ranks * (stage.messages.network_in_bytes + moved.host_gather_in_bytes + moved.host_exchange_in_bytes);
    out[host] += ranks * (stage.messages.network_out_bytes + moved.host_gather_out_bytes +
                          moved.host_exchange_out_bytes);
  }
  return std::max(std::ranges::max(in), std::ranges::max(out));
}

// The work memory of a step with so many micro-batches, which all are between forward and backward at once.
uint64_t peak_of(const TrainingSetup& setup, const TrainConfig& config, Workers& workers, uint32_t live) {
  ModelConfig model = setup.model->config();
  model.part->stages_behind = live - 1;
  const std::unique_ptr<const Ops> ops = make_dry_ops(setup.compute, workers);
  StackArena arena = StackArena::dry_run();
  UseRecorder uses;
  ActivationRecorder activations;
  const bool puts_away = config.activations.offload != ActivationOffload::none;
  const std::vector<MicroBatchRun> runs(live, MicroBatchRun{dry_micro_batch(config, model), ""});
  make_model(model, setup.model->options())
      ->train_stage(
          *ops, uses, arena, runs, [](StageMoment, uint32_t) {}, puts_away ? &activations : nullptr);
  return arena.peak_bytes();
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The passes of a stage by micro-batch.
StagePasses passes_of(const PlannedStage& stage, uint32_t micro_batches) {
  StagePasses passes{std::vector<double>(micro_batches), std::vector<double>(micro_batches),
                     stage.prediction.update_seconds, 0};
  const std::vector<double>& seconds = stage.prediction.pass_seconds;
  size_t next = 0;
  const uint32_t ahead = stage.live_micro_batches - 1;
  for (uint32_t m = 0; m < micro_batches; ++m) {
    passes.forward[m] = seconds.at(next++);
    if (m >= ahead) passes.backward[m - ahead] = seconds.at(next++);
  }
  for (uint32_t m = micro_batches - ahead; m < micro_batches; ++m) passes.backward[m] = seconds.at(next++);
  return passes;
}

PipelineQuestion question_of(const TrainConfig& config, const MachineRates& rates, const PipelinePlan& plan) {
  const PipelineShape& shape = plan.shape;
  PipelineQuestion question;
  for (uint32_t s = 0; s < shape.stages; ++s) {
    question.stages.push_back(passes_of(plan.stages[s], shape.micro_batches));
    question.stages.back().host = shape.host_of(s);
  }
  const auto message = [](uint64_t bytes) { return bytes > 0 ? static_cast<double>(bytes + kHeadBytes) : 0; };
  question.activation_bytes = message(plan.stages.front().messages.activation_bytes);
  question.tied_bytes = message(tied_bytes(plan, config));
  // All data ranks of a stage send at once what goes to another host.
  const double share = static_cast<double>(shape.ranks_per_host) / shape.ranks_together();
  question.network = {rates.network_seconds, rates.network_bytes * share, rates.network_delay};
  question.host_link = {rates.rank_seconds, rates.rank_bytes, 0};
  return question;
}

[[noreturn]] void throw_of_stage(const ShortageError& shortage, size_t stage, uint32_t stages) {
  ErrorParts parts = shortage.parts();
  parts.reason = fmt::format("stage {} of {}: {}", stage + 1, stages, parts.reason);
  throw ShortageError(std::move(parts), shortage.tiers());
}

}  // namespace

void retime(const TrainConfig& config, const MachineRates& rates, PipelinePlan& plan) {
  const PipelineQuestion question = question_of(config, rates, plan);
  plan.time = PipelineClock(question).run();
  double exchanging = 0, busiest = 0;
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    PlannedStage& stage = plan.stages[s];
    const StagePasses& passes = question.stages[s];
    stage.forward_seconds = mean(passes.forward);
    stage.backward_seconds = mean(passes.backward);
    const RankTerms& ranks = stage.prediction.ranks.seconds;
    exchanging = std::max(exchanging, ranks.network_bytes + ranks.network_latency);
    const double busy = plan.time.step_seconds - plan.time.idle_seconds[s];
    if (busy <= busiest) continue;
    busiest = busy;
    plan.slowest_stage = s;
  }
  // Messages between stages and what ranks exchange go through one network.
  const double network = plan.time.line_seconds + exchanging;
  plan.step_seconds = std::max(plan.time.step_seconds, network);
  plan.network_binds = network > busiest;
}

PlannedStage PipelinePlanner::plan_stage(const PipelineShape& shape, const StagePart& part,
                                         const MeasuredMachine* measured) const {
  const TrainConfig own = stage_config(config_, shape, part);
  const TrainingSetup setup =
      set_up_with_fastest_chunks(own, part.model, workers_, compute_, nullptr, machine_);
  if (!machine_) require_disk_room(setup.plan.memory, setup.offload);
  PlannedStage stage;
  stage.part = part, stage.plan = setup.plan;
  stage.prediction = predict_run(own, setup, workers_, measured);
  stage.live_micro_batches = part.model.part->stages_behind + 1;
  const uint64_t one = peak_of(setup, own, workers_, 1), two = peak_of(setup, own, workers_, 2);
  stage.live_bytes = stage.live_micro_batches * (two - one);
  return stage;
}

PipelinePlan PipelinePlanner::plan(const PipelineShape& shape, const MeasuredMachine* measured) const {
  PipelinePlan plan;
  plan.shape = shape;
  plan.bubble = bubble_part(shape.stages, shape.micro_batches);
  plan.has_times = measured != nullptr;
  for (const StagePart& part : divide_into_stages(model_, model_options(config_), shape)) {
    try {
      plan.stages.push_back(plan_stage(shape, part, measured));
    } catch (const ShortageError& shortage) {
      throw_of_stage(shortage, plan.stages.size(), shape.stages);
    }
    plan.has_times = plan.has_times && plan.stages.back().prediction.has_times;
  }
  add_messages(config_, model_, plan);
  plan.host_bytes = busiest_host(plan);
  if (plan.has_times) retime(config_, measured->rates, plan);
  return plan;
}

TrainingSetup PipelinePlanner::setup_to_measure(const PipelineShape& shape) const {
  const ModelOptions options = model_options(config_);
  const StagePart first = divide_into_stages(model_, options, shape).front();
  TrainingSetup setup = set_up_training(stage_config(config_, shape, first), first.model, workers_, compute_);
  setup.model = make_model(model_, options);
  return setup;
}

}  // namespace terrace
