#include "inspect/plan_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/reference/planning/chunk_size.h>

namespace terrace {
namespace {

uint64_t tokens_per_step(const TrainerOptions& options) {
  return uint64_t{options.config.batch.train_batch_size()} * options.model.context;
}

// Whether hosts exchange something and nobody has said how fast.
bool lacks_network(const std::optional<MeasuredMachine>& measured, uint32_t ranks, uint32_t on_host) {
  return measured && ranks > on_host && measured->rates.network_bytes == 0;
}

// Makes the choices of a comparison.
class Comparison {
 public:
  explicit Comparison(const StagesQuestion& question)
      : q_(question),
        config_(question.options.config),
        ranks_(config_.batch.ranks),
        planner_(config_, question.options.model, question.workers, question.options.compute,
                 question.machine) {
    config_.zero_stage = 3;  // the ranks of a stage divide its parameters too
  }

  StagesComparison compare() {
    StagesComparison comparison;
    comparison.ranks = ranks_;
    comparison.tokens_per_step = tokens_per_step(q_.options);
    comparison.model = make_model(q_.options.model, model_options(config_))->description();
    for (uint32_t stages = 1; stages <= ranks_; ++stages) {
      if (ranks_ % stages != 0) continue;
      StagesChoice choice;
      choice.stages = stages, choice.data_ranks = ranks_ / stages;
      try {
        stages == 1 ? plan_whole(choice) : plan_pipeline(choice);
      } catch (const Error& error) {
        choice.refusal = error.in(Door::program);
      }
      comparison.choices.push_back(std::move(choice));
    }
    std::ranges::stable_sort(comparison.choices, {}, [](const StagesChoice& choice) {
      return std::tuple(!choice.refusal.empty(), !choice.has_times, choice.step_seconds, choice.host_bytes);
    });
    comparison.network_is_unknown = lacks_network(measured_, ranks_, q_.ranks_per_host);
    comparison.crossing = crossing();
    return comparison;
  }

 private:
  const MeasuredMachine* measured(const TrainingSetup& setup) {
    if (!has_measured_) measured_ = q_.measure(config_, setup);
    has_measured_ = true;
    return measured_ ? &*measured_ : nullptr;
  }

  // ZeRO-3: each rank computes all layers.
  void plan_whole(StagesChoice& choice) {
    TrainingSetup setup = set_up_with_fastest_chunks(config_, q_.options.model, q_.workers,
                                                     q_.options.compute, nullptr, q_.machine);
    if (!q_.machine) require_disk_room(setup.plan.memory, setup.offload);
    const PlanPrediction prediction = predict_run(config_, setup, q_.workers, measured(setup));
    const OffloadCounters& moved = prediction.step;
    choice.host_bytes =
        q_.ranks_per_host * std::max(moved.host_gather_in_bytes + moved.host_exchange_in_bytes,
                                     moved.host_gather_out_bytes + moved.host_exchange_out_bytes);
    choice.has_times = prediction.has_times;
    choice.step_seconds = prediction.step_seconds;
    if (choice.has_times) {
      choice.bound_by = words_of_binding(prediction);
      whole_.emplace(std::move(setup));
    }
  }

  void plan_pipeline(StagesChoice& choice) {
    const PipelineShape shape{choice.stages, choice.data_ranks, q_.ranks_per_host,
                              config_.batch.micro_batches / choice.data_ranks};
    if (!has_measured_) measured(planner_.setup_to_measure(shape));
    PipelinePlan plan = planner_.plan(shape, measured_ ? &*measured_ : nullptr);
    choice.host_bytes = plan.host_bytes;
    choice.has_times = plan.has_times;
    choice.step_seconds = plan.step_seconds;
    if (!plan.has_times) return;
    choice.bound_by = words_of_binding(plan);
    if (choice.data_ranks == 1) pipeline_.emplace(std::move(plan));
  }

  // How much longer ZeRO-3 takes than the pipeline of a stage for each rank, at this rate between hosts.
  double gain(double host_bytes) {
    MeasuredMachine machine = *measured_;
    machine.rates.network_bytes = host_bytes / q_.ranks_per_host;
    retime(config_, machine.rates, *pipeline_);
    const auto time_of = [&](std::string_view operation, uint64_t elements) {
      return machine.operations.of(operation, elements);
    };
    const StepTimes times{machine.rates, time_of};
    const PlanPrediction whole = predict_run(config_, *whole_, q_.workers, &times, PlanScope::steps);
    return whole.step_seconds - pipeline_->step_seconds;
  }
  // Times are about linear in the seconds that a byte takes: the false position finds where they meet, and
  // halves the weight of an end that stays (the Illinois algorithm; Dowell and Jarratt, 1971).
  StagesCrossing crossing() {
    constexpr double kLeast = 1e5, kMost = 1e12, kPrecision = 1.002;
    constexpr int kMostTries = 40;
    StagesCrossing crossing;
    if (!whole_ || !pipeline_ || ranks_ <= q_.ranks_per_host) return crossing;
    double slow = 1 / kLeast, fast = 1 / kMost, slow_gain = gain(kLeast), fast_gain = gain(kMost);
    crossing.is_known = true;
    crossing.pipeline_wins = slow_gain > 0;
    if ((fast_gain > 0) == crossing.pipeline_wins) return crossing;
    double last = 0;
    bool was_slow = false;
    for (int tries = 0; tries < kMostTries; ++tries) {
      const double middle = (fast * slow_gain - slow * fast_gain) / (slow_gain - fast_gain);
      crossing.host_bytes = 1 / middle;
      if (std::max(middle, last) < kPrecision * std::min(middle, last)) break;
      const double found = gain(1 / middle);
      const bool is_slow = (found > 0) == crossing.pipeline_wins;
      const bool same_side = last > 0 && is_slow == was_slow;
      if (same_side) (is_slow ? fast_gain : slow_gain) /= 2;
      (is_slow ? slow : fast) = middle;
      (is_slow ? slow_gain : fast_gain) = found;
      was_slow = is_slow;
      last = middle;
    }
    return crossing;
  }

  const StagesQuestion& q_;
  TrainConfig config_;
  const uint32_t ranks_;
  const PipelinePlanner planner_;
  bool has_measured_ = false;
  std::optional<MeasuredMachine> measured_;
  std::optional<TrainingSetup> whole_;    // of ZeRO-3, if it fits and has times
  std::optional<PipelinePlan> pipeline_;  // of a stage for each rank, if it fits and has times
};

}  // namespace

StagesReport plan_stages(const StagesQuestion& question, uint32_t stages) {
  const TrainerOptions& options = question.options;
  const BatchConfig& batch = options.config.batch;
  const PipelineShape shape{stages, batch.ranks, question.ranks_per_host, batch.micro_batches / batch.ranks};
  const PipelinePlanner planner(options.config, options.model, question.workers, options.compute,
                                question.machine);
  TrainConfig all = options.config;  // whose ranks exchange with each other, be it as stages
  all.batch.ranks = shape.ranks();
  const std::optional<MeasuredMachine> measured = question.measure(all, planner.setup_to_measure(shape));
  StagesReport report;
  report.plan = planner.plan(shape, measured ? &*measured : nullptr);
  report.model = make_model(options.model, model_options(options.config))->description();
  report.tokens_per_step = tokens_per_step(options);
  report.network_is_unknown = lacks_network(measured, shape.ranks(), question.ranks_per_host);
  if (measured) report.operations = measured->operations.description();
  return report;
}

StagesComparison compare_stages(const StagesQuestion& question) {
  return Comparison(question).compare();
}

}  // namespace terrace
