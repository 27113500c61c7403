#include <terrace/reference/planning/ways_out.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/disk_room.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/runtime/config/most_micro_batches.h>

namespace terrace {
namespace {

// A budget that is not given follows from the other one, which may have to be raised because of that.
constexpr int kMostRaises = 3;

struct TierBudget {
  const char* tier;
  Option option;
  std::optional<uint64_t> TerraceConfig::*budget;
};
constexpr std::array kBudgets = {
    TierBudget{"device", Option::device_budget, &TerraceConfig::device_memory_bytes},
    TierBudget{"host", Option::host_budget, &TerraceConfig::host_memory_bytes}};

// False if a tier has no budget.
bool raise_budgets(const std::vector<TierShortage>& tiers, TerraceConfig& terrace) {
  for (const TierShortage& shortage : tiers) {
    const auto held = std::ranges::find(kBudgets, shortage.tier, &TierBudget::tier);
    if (held == kBudgets.end()) return false;
    terrace.*held->budget = round_up(shortage.needed_bytes, kMiB);
  }
  return true;
}

bool asks_for_no_less(const WayOut& way, const WayOut& other) {
  return std::ranges::all_of(kBudgets, [&](const TierBudget& held) {
    const auto bytes = [&held](const WayOut& of) { return (of.config.terrace.*held.budget).value_or(0); };
    return bytes(way) >= bytes(other);
  });
}

// What comes to nvme takes the folders of the other role. Without any, the option names DIR, for which the
// current folder stands.
void add_folders(PlacementConfig& placement, std::vector<ChangedOption>& options) {
  std::vector<std::filesystem::path>&parameters = placement.parameter_paths, &states = placement.state_paths;
  if (!parameters.empty() && !states.empty()) return;
  std::vector<std::filesystem::path>& known = parameters.empty() ? states : parameters;
  for (const std::filesystem::path& path : known) options.push_back({Option::nvme_path, path.string()});
  if (known.empty()) {
    options.push_back({Option::nvme_path, "DIR"});
    known = {"."};
  }
  (parameters.empty() ? parameters : states) = known;
}

void place_all(Placement place, WayOut& way) {
  PlacementConfig& placement = way.config.placement;
  std::string moved;
  if (placement.parameters != place) {
    way.changes.push_back({Option::parameters, std::string(name_of(place))});
    moved = "parameters";
  }
  if (placement.states != place) {
    way.changes.push_back({Option::states, std::string(name_of(place))});
    moved += moved.empty() ? "states" : " and states";
  }
  if (moved.empty()) return;
  placement.parameters = placement.states = place;
  if (place == Placement::nvme) add_folders(placement, way.changes);
  way.effect = moved + (place == Placement::nvme ? " on nvme" : " in host memory");
}

void cut_micro_batches(WayOut& way) {
  BatchConfig& batch = way.config.batch;
  if (batch.micro_batch_size == 1 || batch.train_batch_size() > kMostMicroBatches) return;
  const bool had_one = batch.micro_batches == 1;
  batch.micro_batches *= std::exchange(batch.micro_batch_size, 1);
  way.changes = {{Option::micro_batch_size, "1"},
                 {Option::micro_batches, std::to_string(batch.micro_batches)}};
  // An order that was asked for and had no effect with one micro-batch would have one now.
  if (had_one) way.changes.push_back({Option::layer_major, "false"});
  way.effect = "the same batch in smaller pieces";
}

// Adds the budgets of the way that are not those of the run.
void name_budgets(const TrainConfig& run, WayOut& way) {
  std::vector<ChangedOption> options;
  for (const TierBudget& held : kBudgets) {
    const std::optional<uint64_t> budget = way.config.terrace.*held.budget;
    if (!budget || budget == run.terrace.*held.budget) continue;
    options.push_back({held.option, fmt::format("{}MiB", *budget / kMiB)});
    way.effect +=
        fmt::format("{}{} of {} memory", way.effect.empty() ? "" : ", ", format_bytes(*budget), held.tier);
  }
  way.changes.insert(way.changes.begin(), options.begin(), options.end());
}

class Planner {
 public:
  Planner(const ModelConfig& model, Workers& workers, const ComputeDevice* compute, uint64_t machine_bytes)
      : model_(model),
        workers_(workers),
        compute_(compute),
        own_memory_(facts_of(compute).own_memory),
        machine_bytes_(machine_bytes) {}

  // Raises budgets that are too small. False if the run fits with none that can be had.
  bool let_fit(TrainConfig& config) const {
    for (int raises = 0;; ++raises) {
      try {
        const TrainingSetup setup = set_up_training(config, model_, workers_, compute_);
        require_disk_room(setup.plan.memory, setup.offload);
        return is_to_be_had(config, setup.plan.memory);
      } catch (const ShortageError& shortage) {
        if (raises == kMostRaises || !raise_budgets(shortage.tiers(), config.terrace)) return false;
      } catch (const Error&) {
        return false;  // what does not go together
      }
    }
  }

 private:
  // A budget that is rounded up may be more than there is where what the run takes is not.
  bool is_to_be_had(const TrainConfig& config, const MemoryPlan& plan) const {
    if (!own_memory_) return plan.device_bytes + plan.host_bytes <= machine_bytes_;
    const uint64_t budget = config.terrace.device_memory_bytes.value_or(plan.device_bytes);
    return budget <= own_memory_->budget_bytes && plan.host_bytes <= machine_bytes_;
  }

  const ModelConfig& model_;
  Workers& workers_;
  const ComputeDevice* const compute_;
  const std::optional<ComputeFacts::OwnMemory> own_memory_;
  const uint64_t machine_bytes_;
};

}  // namespace

std::vector<WayOut> find_ways_out(const ShortageError& refusal, const TrainConfig& config,
                                  const ModelConfig& model, Workers& workers, const ComputeDevice* compute,
                                  uint64_t machine_bytes) {
  const Planner planner(model, workers, compute, machine_bytes);
  const bool drives_are_full = refusal.tiers().front().tier == "nvme";
  std::array<WayOut, 3> tried = {WayOut{{}, "", config}, WayOut{{}, "", config}, WayOut{{}, "", config}};
  place_all(drives_are_full ? Placement::cpu : Placement::nvme, tried[1]);
  cut_micro_batches(tried[2]);
  std::vector<WayOut> ways;
  const WayOut* more_memory = nullptr;
  for (WayOut& way : tried) {
    const bool is_first = &way == &tried.front();
    if (!is_first && way.changes.empty()) continue;
    if (!planner.let_fit(way.config)) continue;
    if (more_memory != nullptr && asks_for_no_less(way, *more_memory)) continue;
    if (is_first) more_memory = &way;
    name_budgets(config, way);
    ways.push_back(way);
  }
  return ways;
}

}  // namespace terrace
