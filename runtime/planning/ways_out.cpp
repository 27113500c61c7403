#include <terrace/runtime/planning/ways_out.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/machine.h>
#include <terrace/offload/disk_room.h>
#include <terrace/runtime/training_setup.h>

namespace terrace {
namespace {

constexpr uint64_t kBoundless = uint64_t{1} << 50;
constexpr uint64_t kStepBytes = kMiB;  // to which a least budget is looked for
constexpr uint32_t kShortestContext = 64;

using Budget = std::optional<uint64_t> TerraceConfig::*;
constexpr Budget kDevice = &TerraceConfig::device_memory_bytes;
constexpr Budget kHost = &TerraceConfig::host_memory_bytes;

// A run, as much of it as may be changed.
struct Run {
  TrainConfig config;
  ModelConfig model;
};

// A change that may help. `apply` says whether there was anything to change.
struct Change {
  std::string text;
  std::string effect;
  std::function<bool(Run&)> apply;
};

std::string flag(Budget budget, uint64_t bytes) {
  return fmt::format("{} {}MiB", budget == kDevice ? "--device-memory" : "--host-memory",
                     divide_up(bytes, kMiB));
}

// Takes the folders of the other role where it has none; their disks are asked for room.
bool move_to(Placement to, Placement& role, std::vector<std::filesystem::path>& paths,
             const std::vector<std::filesystem::path>& others) {
  if (role >= to) return false;
  role = to;
  if (to != Placement::nvme || !paths.empty()) return true;
  paths = others.empty() ? std::vector<std::filesystem::path>{"."} : others;
  return true;
}
bool move_states(TrainConfig& config, Placement to) {
  PlacementConfig& placement = config.placement;
  return move_to(to, placement.states, placement.state_paths, placement.parameter_paths);
}
bool move_parameters(TrainConfig& config, Placement to) {
  PlacementConfig& placement = config.placement;
  return move_to(to, placement.parameters, placement.parameter_paths, placement.state_paths);
}
bool move_both(TrainConfig& config, Placement to) {
  const bool moved = move_parameters(config, to);
  return move_states(config, to) || moved;
}
static_assert(Placement::none < Placement::cpu && Placement::cpu < Placement::nvme);

void add_smaller_micro_batches(const BatchConfig& batch, std::vector<Change>& changes) {
  for (uint32_t parts = 2; parts <= batch.micro_batch_size; parts *= 2) {
    if (batch.micro_batch_size % parts != 0) return;
    BatchConfig smaller = batch;
    smaller.micro_batch_size /= parts;
    smaller.accumulation_steps *= parts;
    changes.push_back({fmt::format("--micro-batch {} --accumulation {}", smaller.micro_batch_size,
                                   smaller.accumulation_steps),
                       "the same batch in smaller pieces", [smaller](Run& run) {
                         run.config.batch = smaller;
                         return true;
                       }});
  }
}

void add_device_changes(const TrainConfig& config, const ModelConfig& model, std::vector<Change>& changes) {
  changes.push_back({"--offload-optimizer cpu", "states in host memory",
                     [](Run& run) { return move_states(run.config, Placement::cpu); }});
  changes.push_back({"--offload-param cpu --offload-optimizer cpu", "parameters and states in host memory",
                     [](Run& run) { return move_both(run.config, Placement::cpu); }});
  changes.push_back({"activation_checkpointing.cpu_checkpointing true in the configuration",
                     "checkpointed activations in host memory", [](Run& run) {
                       return run.config.activations.checkpoint &&
                              std::exchange(run.config.activations.offload, ActivationOffload::cpu) ==
                                  ActivationOffload::none;
                     }});
  add_smaller_micro_batches(config.batch, changes);
  changes.push_back(
      {"bf16.enabled true in the configuration", "parameters and gradients in 16 bits",
       [](Run& run) { return std::exchange(run.config.precision, DataType::bf16) == DataType::fp32; }});
  for (uint32_t context = model.context / 2; context >= kShortestContext; context /= 2) {
    changes.push_back({fmt::format("--context {}", context), "shorter sequences", [context](Run& run) {
                         run.model.context = context;
                         return true;
                       }});
  }
}

Change compact_state() {
  return {"--compact-state", "2 bytes of a master weight instead of 4, with the same numbers", [](Run& run) {
            return run.config.precision == DataType::bf16 &&
                   !std::exchange(run.config.terrace.compact_state, true);
          }};
}

void add_host_changes(const TrainConfig& config, std::vector<Change>& changes) {
  const bool has_path = !config.placement.state_paths.empty() || !config.placement.parameter_paths.empty();
  const std::string path = has_path ? "" : " --nvme-path DIR";
  changes.push_back({"--offload-optimizer nvme" + path, "states on nvme",
                     [](Run& run) { return move_states(run.config, Placement::nvme); }});
  changes.push_back({"--offload-param nvme --offload-optimizer nvme" + path, "parameters and states on nvme",
                     [](Run& run) { return move_both(run.config, Placement::nvme); }});
  changes.push_back(compact_state());
}

void add_disk_changes(std::vector<Change>& changes) {
  changes.push_back({"terrace.durable false in the configuration",
                     "no way back to the last epoch after a crash",
                     [](Run& run) { return std::exchange(run.config.terrace.durable, false); }});
  changes.push_back(compact_state());
  changes.push_back({"--offload-param cpu", "parameters in host memory", [](Run& run) {
                       return std::exchange(run.config.placement.parameters, Placement::cpu) ==
                              Placement::nvme;
                     }});
  changes.push_back({"--offload-optimizer cpu", "states in host memory", [](Run& run) {
                       return std::exchange(run.config.placement.states, Placement::cpu) == Placement::nvme;
                     }});
}

uint64_t budget_in_force(const TrainConfig& config, Budget budget) {
  const Machine machine = probe_machine();
  const DefaultBudget chosen =
      budget == kDevice ? largest_simulated_device_budget(machine) : default_host_budget(machine);
  return (config.terrace.*budget).value_or(chosen.bytes);
}

// A budget that is not given follows from the other one; here each stays what it is.
TrainConfig with_budgets(TrainConfig config) {
  for (const Budget budget : {kDevice, kHost}) config.terrace.*budget = budget_in_force(config, budget);
  return config;
}

class Search {
 public:
  Search(const TrainConfig& config, const ModelConfig& model, Workers& workers, size_t wanted)
      : config_(config), model_(model), workers_(workers), wanted_(wanted) {}

  bool fits_memory(const TrainConfig& config) { return fits({config, model_}, false); }
  bool fits_with(Budget budget, uint64_t bytes) {
    TrainConfig changed = with_budgets(config_);
    changed.terrace.*budget = bytes;
    return fits_memory(changed);
  }
  // The least budget of whole MiB that does, with everything else as in `config`; none below kBoundless.
  std::optional<uint64_t> least(TrainConfig config, Budget budget) {
    uint64_t too_little = 0;
    uint64_t enough = kStepBytes;
    const auto is_enough = [&](uint64_t bytes) {
      config.terrace.*budget = bytes;
      return fits_memory(config);
    };
    while (!is_enough(enough)) {
      too_little = enough;
      enough *= 2;
      if (enough > kBoundless) return std::nullopt;
    }
    while (enough - too_little > kStepBytes) {
      const uint64_t middle = (too_little + enough) / 2 / kStepBytes * kStepBytes;
      (is_enough(middle) ? enough : too_little) = middle;
    }
    return enough;
  }
  bool try_way(std::string change, std::string effect, const Run& changed) {
    if (ways_.size() >= wanted_ || !fits(changed, true)) return false;
    ways_.push_back({std::move(change), std::move(effect), changed.config, changed.model});
    return true;
  }
  // One of them, or where that is not enough two together of which neither is enough.
  void try_changes(const std::vector<Change>& changes) {
    std::vector<bool> is_enough(changes.size());
    for (size_t c = 0; c < changes.size(); ++c) {
      Run changed{config_, model_};
      is_enough[c] = changes[c].apply(changed) && try_way(changes[c].text, changes[c].effect, changed);
    }
    for (size_t one = 0; one < changes.size(); ++one) {
      for (size_t other = one + 1; other < changes.size() && ways_.size() < wanted_; ++other) {
        Run changed{config_, model_};
        if (is_enough[one] || is_enough[other]) continue;
        if (changes[one].apply(changed) && changes[other].apply(changed))
          try_way(changes[one].text + " " + changes[other].text,
                  changes[one].effect + ", " + changes[other].effect, changed);
      }
    }
  }
  std::vector<WayOut> take() { return std::move(ways_); }

 private:
  bool fits(const Run& run, bool with_disk) {
    try {
      const TrainingSetup setup = set_up_training(run.config, run.model, workers_);
      if (with_disk) require_disk_room(setup.plan.memory, setup.offload);
      return true;
    } catch (const Error&) {
      return false;  // too little of something, or what does not go together
    }
  }

  const TrainConfig& config_;
  const ModelConfig& model_;
  Workers& workers_;
  const size_t wanted_;
  std::vector<WayOut> ways_;
};

// Where one of the two is short by itself, that one; else both, the device first.
void raise_budgets(Search& search, const TrainConfig& config, const ModelConfig& model,
                   const std::vector<Budget>& of, uint64_t machine_bytes, Shortage& shortage) {
  TrainConfig raised = with_budgets(config);
  for (const Budget budget : of) raised.terrace.*budget = kBoundless;
  Run suggested{config, model};
  std::string change;
  for (const Budget budget : of) {
    const std::optional<uint64_t> least = search.least(raised, budget);
    if (!least) return;
    shortage.missing_bytes += *least - std::min(*least, budget_in_force(config, budget));
    raised.terrace.*budget = suggested.config.terrace.*budget = *least;
    change += (change.empty() ? "" : " ") + flag(budget, *least);
  }
  uint64_t given = 0;
  for (const Budget budget : {kDevice, kHost}) given += (suggested.config.terrace.*budget).value_or(0);
  if (given <= machine_bytes)
    search.try_way(change, fmt::format("{} more", format_bytes(shortage.missing_bytes)), suggested);
}

}  // namespace

Shortage find_ways_out(const TrainConfig& config, const ModelConfig& model, Workers& workers,
                       uint64_t machine_bytes, size_t wanted) {
  Search search(config, model, workers, wanted);
  Shortage shortage;
  std::vector<Change> changes;
  std::vector<Budget> budgets;
  if (search.fits_memory(config)) {
    shortage.tier = "nvme";
    add_disk_changes(changes);
  } else if (search.fits_with(kHost, kBoundless)) {
    shortage.tier = "host";
    budgets = {kHost};
    add_host_changes(config, changes);
  } else {
    const bool alone = search.fits_with(kDevice, kBoundless);
    shortage.tier = alone ? "device" : "device and host";
    budgets = alone ? std::vector<Budget>{kDevice} : std::vector<Budget>{kDevice, kHost};
    add_device_changes(config, model, changes);
    add_host_changes(config, changes);  // host memory may be too little for what leaves the device
  }
  if (!budgets.empty()) raise_budgets(search, config, model, budgets, machine_bytes, shortage);
  search.try_changes(changes);
  shortage.ways = search.take();
  return shortage;
}

}  // namespace terrace
