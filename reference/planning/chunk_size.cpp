#include <terrace/reference/planning/chunk_size.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/offload/watch/time_account.h>
#include <terrace/reference/planning/predict.h>
#include <terrace/reference/planning/settle.h>

namespace terrace {
namespace {

// Multiplications and additions per second, of a thread and of a GPU.
constexpr double kThreadFlops = 45e9;
constexpr double kGpuFlops = 50e12;
// What a chunk takes of a step beside its bytes, in whole steps of many sizes of chunks (docs/planning.md).
constexpr double kChunkSeconds = 55e-6;
// Another size has to take less than this part of the time.
constexpr double kWorthWhile = 0.99;
// Other sizes are not planned where none could take less than this part of the time.
constexpr double kWorthPlanning = 0.98;
// More micro-batches of a step are like these.
constexpr uint32_t kMicroBatches = 4;
// So many sizes in a row that are no better end the search in one direction.
constexpr int kPatience = 2;

// Of a typical machine with so many threads; where `has_gpu`, of one beside them.
MachineRates reference_rates(const PlacementConfig& placement, size_t threads, bool has_gpu) {
  MachineRates rates;
  rates.thread_count = threads;
  rates.chunk_seconds = kChunkSeconds;
  rates.copy_bytes = 8e9;
  rates.clear_bytes = 20e9;
  rates.sum_elements = 2e9 * static_cast<double>(threads);
  rates.accumulate_elements = 1.2e9 * static_cast<double>(threads);
  rates.update_elements = 1.2e9;
  rates.update_together_elements = 0.6e9 * static_cast<double>(threads);
  rates.checksum_bytes = 20e9;
  std::set<std::filesystem::path> paths(placement.state_paths.begin(), placement.state_paths.end());
  paths.insert(placement.parameter_paths.begin(), placement.parameter_paths.end());
  const double known = measured_rate(placement, std::vector(paths.begin(), paths.end()));
  rates.disk_mixed_bytes = known > 0 ? known : 1.7e9;
  rates.disk_read_bytes = 1.5 * rates.disk_mixed_bytes;
  rates.disk_write_bytes = rates.disk_mixed_bytes;
  if (has_gpu) {
    rates.copy_bytes = rates.clear_bytes = 0;  // of a simulated device
    rates.device = DeviceRates{.link = {.to_device = 20e9, .to_host = 20e9, .each_way = 16e9},
                               .clear_bytes = 500e9,
                               .sum_elements = 100e9,
                               .accumulate_elements = 50e9,
                               .update_elements = 20e9};
  }
  return rates;
}

// How long a step takes with chunks of one size.
class Trials {
 public:
  Trials(const TrainConfig& config, const ModelConfig& model, Workers& workers, const ComputeDevice* compute,
         size_t most_sizes, PlanningProgress* progress)
      : config_(config),
        model_(model),
        workers_(workers),
        compute_(compute),
        most_sizes_(most_sizes),
        progress_(progress) {
    config_.batch.micro_batches = std::min(config.batch.micro_batches, kMicroBatches);
    repeats_ = static_cast<double>(config.batch.micro_batches) / config_.batch.micro_batches;
  }

  // Nothing: it does not fit.
  std::optional<double> seconds(uint64_t chunk_elements) {
    config_.terrace.chunk_elements = chunk_elements;
    if (progress_ != nullptr) progress_->begin_size(most_sizes_);
    try {
      const TrainingSetup setup = set_up_training(config_, model_, workers_, compute_);
      require_disk_room(setup.plan.memory, setup.offload);
      const PlanPrediction step = predict_by_reference(config_, setup, workers_, mode_);
      mode_ = step.update_mode;
      computing_seconds_ = 1e-9 * static_cast<double>(step.step.time[TimeCause::compute]) * repeats_;
      return (step.forward_seconds + step.backward_seconds) * repeats_ + step.update_seconds;
    } catch (const ShortageError&) {
      return std::nullopt;
    }
  }
  // For how long a step of the size that was planned last computes: with chunks of another size, which move
  // no less, it does so for at least as long.
  double computing_seconds() const { return computing_seconds_; }

 private:
  TrainConfig config_;
  const ModelConfig& model_;
  Workers& workers_;
  const ComputeDevice* const compute_;
  const size_t most_sizes_;
  PlanningProgress* const progress_;
  std::optional<UpdateMode>
      mode_;  // that of the first size, in which the others are planned where they can be
  double computing_seconds_ = 0;
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
  if (trials.computing_seconds() >= kWorthPlanning * least) return first;
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
    if (static_cast<double>(parameters / *size) * kChunkSeconds >= least) break;
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
                                    std::optional<UpdateMode> mode) {
  const bool has_gpu = facts_of(setup.compute).own_memory.has_value();
  const MachineRates rates = reference_rates(config.placement, workers.thread_count(), has_gpu);
  const uint64_t tokens = uint64_t{config.batch.micro_batch_size} * setup.model->config().context;
  const double flops = has_gpu ? kGpuFlops : kThreadFlops * static_cast<double>(rates.thread_count);
  const OperationTimes operations(tokens, flops);
  const auto time_of = [&](std::string_view operation, uint64_t elements) {
    return operations.of(operation, elements);
  };
  const StepTimes times{rates, time_of};
  if (mode && is_possible(*mode, setup)) return predict(config, setup, *mode, workers, &times);
  return predict_run(config, setup, workers, &times);
}

TrainingSetup set_up_with_fastest_chunks(const TrainConfig& config, const ModelConfig& model,
                                         Workers& workers, const ComputeDevice* compute,
                                         PlanningProgress* progress) {
  TrainingSetup setup = set_up_training(config, model, workers, compute);
  if (config.terrace.chunk_elements || !moves_chunks(setup)) return setup;
  const uint64_t first = setup.plan.chunk_elements;
  const std::vector<uint64_t> sizes = chunk_sizes(setup.tensors, setup.offload, config.max_chunk_elements);
  Trials trials(config, model, workers, compute, sizes.size(), progress);
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
