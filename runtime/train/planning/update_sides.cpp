#include <terrace/runtime/train/planning/update_sides.h>

#include <fmt/format.h>

#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/train/planning/decision_file.h>
#include <terrace/runtime/train/planning/link_rates.h>
#include <terrace/runtime/train/planning/machine_rates.h>

namespace terrace {
namespace {

// Records in host memory are updated by all threads, what streams from nvme by one.
double processor_rate(const TrainConfig& config, Workers& workers) {
  return measure_update_rate(rate_question(config), config.placement.states == Placement::cpu, workers);
}

// Of all drives of the states; 0 where one of them is not known.
double nvme_rate(const PlacementConfig& placement) {
  if (placement.states != Placement::nvme) return 0;
  double sum = 0;
  for (const std::filesystem::path& path : placement.state_paths) {
    const auto rate = placement.measured_rates.find(path);
    if (rate == placement.measured_rates.end()) return 0;
    sum += rate->second;
  }
  return sum;
}

UpdateRates measure(const TrainConfig& config, const ComputeDevice& compute) {
  Workers workers = make_compute_threads(config.terrace);
  const bool locks = config.placement.pin_parameters && config.placement.pin_states;
  return {.processor_elements = processor_rate(config, workers),
          .link_bytes = measure_link_rates(compute, locks, workers).each_way,
          .nvme_bytes = nvme_rate(config.placement)};
}

std::string rates_text(const UpdateRates& rates) {
  std::string text =
      fmt::format("the processor updates {:.3g} G elements/s, and the link carries {:.3g} GB/s each way",
                  rates.processor_elements * 1e-9, rates.link_bytes * 1e-9);
  if (rates.nvme_bytes > 0)
    text += fmt::format(", the drives {:.3g} GB/s both ways together", rates.nvme_bytes * 1e-9);
  return text;
}

std::string take_recorded(PlacementConfig& placement, const std::filesystem::path& path) {
  const DecisionSubject recorded = recorded_subject(path);
  placement.update_rates = recorded.update_rates;
  placement.processor_share = recorded.processor_share;
  if (recorded.update_rates)
    return fmt::format("as {} has it, {}", path.string(), rates_text(*recorded.update_rates));
  return fmt::format("as {} has it", path.string());
}

}  // namespace

std::string settle_update_sides(TrainConfig& config, const ComputeDevice* compute,
                                const std::filesystem::path& replayed) {
  PlacementConfig& placement = config.placement;
  placement.update_rates.reset();
  if (!placement.measures_sides) return "";
  if (config.terrace.update == UpdateMode::next_forward)
    return "updates run in the next forward, in which the device has no part";
  if (!replayed.empty()) return take_recorded(placement, replayed);
  if (!facts_of(compute).own_memory) return "the simulated device computes with the processor's own threads";
  placement.update_rates = measure(config, *compute);
  return rates_text(*placement.update_rates);
}

std::string update_sides_text(const std::string& found, const TrainConfig& config,
                              const TrainingSetup& setup) {
  const TrainerPlan& plan = setup.plan;
  std::string text = fmt::format("offload_optimizer.ratio is auto: {}: ", found);
  if (plan.memory.device_update_chunks > 0) {
    return text + fmt::format(
                      "the processor updates {:.1f} % of the bytes of optimizer states, the device "
                      "{:.1f} %, in {} chunks",
                      100 * plan.processor_share, 100 - 100 * plan.processor_share,
                      plan.memory.device_update_chunks);
  }
  text += "the processor updates all";
  const std::optional<UpdateRates>& rates = config.placement.update_rates;
  if (!rates) return text;
  if (!setup.offload.update_rates) return text + ": the device has no memory to take part";
  const double record = static_cast<double>(setup.offload.record_layout.tile_bytes()) / kTileElements;
  if (rates->nvme_bytes > 0 && rates->processor_elements * 2 * record >= rates->nvme_bytes)
    text += ": the drives are slower than the processor alone";
  return text;
}

}  // namespace terrace
