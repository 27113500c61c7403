#include <terrace/reference/planning/chunk_size.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/offload/watch/time_account.h>
#include <terrace/reference/planning/predict.h>

namespace terrace {
namespace {

// Another size has to take less than this part of the time.
constexpr double kWorthWhile = 0.99;
// Other sizes are not planned where none could take less than this part of the time.
constexpr double kWorthPlanning = 0.98;
// More micro-batches of a step are like these.
constexpr uint32_t kMicroBatches = 4;
// So many sizes in a row that are no better end the search in one direction.
constexpr int kPatience = 2;

// Where steps are planned, and where they would run.
struct TrialMachines {
  Workers& workers;
  const ComputeDevice* compute;
  ReferenceMachine reference;
};

// How long a step takes with chunks of one size.
class Trials {
 public:
  Trials(const TrainConfig& config, const ModelConfig& model, const TrialMachines& machines,
         size_t most_sizes, PlanningProgress* progress)
      : config_(config), model_(model), machines_(machines), most_sizes_(most_sizes), progress_(progress) {
    config_.batch.micro_batches = std::min(config.batch.micro_batches, kMicroBatches);
    repeats_ = static_cast<double>(config.batch.micro_batches) / config_.batch.micro_batches;
  }

  // Nothing: it does not fit.
  std::optional<double> seconds(uint64_t chunk_elements) {
    config_.terrace.chunk_elements = chunk_elements;
    if (progress_ != nullptr) progress_->begin_size(most_sizes_);
    try {
      const TrainingSetup setup = set_up_training(config_, model_, machines_.workers, machines_.compute);
      require_disk_room(setup.plan.memory, setup.offload);
      const PlanPrediction step =
          predict_by_reference(config_, setup, machines_.workers, machines_.reference, mode_);
      mode_ = step.update_mode;
      busiest_seconds_ = busiest(step.step);
      return (step.forward_seconds + step.backward_seconds) * repeats_ + step.update_seconds;
    } catch (const ShortageError&) {
      return std::nullopt;
    }
  }
  // For how long what is busiest is busy in a step of the size that was planned last. With chunks of another
  // size, which move no less, it is so for at least as long.
  double busiest_seconds() const { return busiest_seconds_; }
  // What a chunk takes of a step beside its bytes.
  double chunk_seconds() const {
    return reference_rates(machines_.reference, config_.placement).chunk_seconds;
  }

 private:
  // At least so long, since what the update moves is not repeated with the micro-batches.
  double busiest(const OffloadCounters& step) const {
    const double computing = static_cast<double>(step.time[TimeCause::compute]) * repeats_;
    const uint64_t moving = std::max({step.disk_busy_ns, step.h2d_busy_ns, step.d2h_busy_ns});
    return 1e-9 * std::max(computing, static_cast<double>(moving));
  }

  TrainConfig config_;
  const ModelConfig& model_;
  const TrialMachines machines_;
  const size_t most_sizes_;
  PlanningProgress* const progress_;
  std::optional<UpdateMode>
      mode_;  // that of the first size, in which the others are planned where they can be
  double busiest_seconds_ = 0;
  double repeats_ = 1;  // of the micro-batches that are planned
};

// The fastest of `sizes`, which fall; `first` is one of them and fits. Another one has to be faster by more
// than the model is to be believed, for `first` moves least.
uint64_t fastest(const std::vector<uint64_t>& sizes, uint64_t first, uint64_t parameters, Trials& trials) {
  const auto begin = std::ranges::find(sizes, first);
  const std::optional<double> first_seconds = trials.seconds(first);
  if (begin == sizes.end() || !first_seconds) return first;
  uint64_t best = first;
  double least = *first_seconds;
  const auto is_faster = [&](const std::optional<double>& seconds) {
    return seconds && *seconds < kWorthWhile * least;
  };
  if (trials.busiest_seconds() >= kWorthPlanning * least) return first;
  int worse = 0;
  for (auto size = begin; size != sizes.begin() && worse < kPatience;) {
    const std::optional<double> seconds = trials.seconds(*--size);
    if (!seconds) break;
    worse = is_faster(seconds) ? 0 : worse + 1;
    if (is_faster(seconds)) std::tie(best, least) = std::pair(*size, *seconds);
  }
  if (best != first) return best;
  worse = 0;
  for (auto size = std::next(begin); size != sizes.end() && worse < kPatience; ++size) {
    // Each of them comes to the device at least once.
    if (static_cast<double>(parameters / *size) * trials.chunk_seconds() >= least) break;
    const std::optional<double> seconds = trials.seconds(*size);
    worse = is_faster(seconds) ? 0 : worse + 1;
    if (is_faster(seconds)) std::tie(best, least) = std::pair(*size, *seconds);
  }
  return best;
}

// Whether a step takes anything to the device and off it again.
bool moves_chunks(const TrainingSetup& setup) {
  return !has_all_on_device(setup.offload) || setup.offload.states != Placement::none;
}

}  // namespace

PlanPrediction predict_by_reference(const TrainConfig& config, const TrainingSetup& setup, Workers& workers,
                                    const ReferenceMachine& machine, std::optional<UpdateMode> mode) {
  const MeasuredMachine assumed = assume_machine(config, setup, machine);
  const auto time_of = [&](std::string_view operation, uint64_t elements) {
    return assumed.operations.of(operation, elements);
  };
  const StepTimes times{assumed.rates, time_of};
  if (mode && is_possible(*mode, setup))
    return predict(config, setup, *mode, workers, &times, PlanScope::steps);
  return predict_run(config, setup, workers, &times, PlanScope::steps);
}

TrainingSetup set_up_with_fastest_chunks(const TrainConfig& config, const ModelConfig& model,
                                         Workers& workers, const ComputeDevice* compute,
                                         PlanningProgress* progress,
                                         const std::optional<ReferenceMachine>& machine) {
  TrainingSetup setup = set_up_training(config, model, workers, compute);
  if (config.terrace.chunk_elements || !moves_chunks(setup)) return setup;
  const uint64_t first = setup.plan.chunk_elements;
  const std::vector<uint64_t> sizes = chunk_sizes(setup.tensors, setup.offload, config.max_chunk_elements);
  const TrialMachines machines{workers, compute, machine.value_or(reference_machine(workers, compute))};
  Trials trials(config, model, machines, sizes.size(), progress);
  const uint64_t best = fastest(sizes, first, setup.plan.parameter_count, trials);
  if (best != first) {
    TrainConfig cut = config;
    cut.terrace.chunk_elements = best;
    setup = set_up_training(cut, model, workers, compute);
  }
  if (progress != nullptr) progress->begin_taken();
  setup.plan.chunk_origin =
      chunk_origin(best, config.max_chunk_elements, "with which a step should take least time");
  return setup;
}

}  // namespace terrace
