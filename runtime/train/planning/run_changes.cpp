#include <terrace/runtime/train/planning/run_changes.h>

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include <terrace/base/option.h>
#include <terrace/base/record_layout.h>
#include <terrace/runtime/config/most_micro_batches.h>

namespace terrace {
namespace {

constexpr uint32_t kShortestContext = 64;

using Paths = std::vector<std::filesystem::path>;

// Their disks are asked for room.
void take_folders(Paths& paths, const Paths& others) {
  if (paths.empty()) paths = others.empty() ? Paths{"."} : others;
}

void place(Placement parameters, Placement states, PlacementConfig& placement) {
  placement.parameters = parameters;
  placement.states = states;
  const Paths parameter_paths = placement.parameter_paths;
  if (parameters == Placement::nvme) take_folders(placement.parameter_paths, placement.state_paths);
  if (states == Placement::nvme) take_folders(placement.state_paths, parameter_paths);
}

// Where what comes to nvme has no folder yet: the one that the other role has, as place() takes it.
void add_folders(const PlacementConfig& now, Placement parameters, Placement states,
                 std::vector<ChangedOption>& options) {
  const bool parameters_lack = parameters == Placement::nvme && now.parameter_paths.empty();
  const bool states_lack = states == Placement::nvme && now.state_paths.empty();
  if (!parameters_lack && !states_lack) return;
  const Paths& known = now.parameter_paths.empty() ? now.state_paths : now.parameter_paths;
  for (const std::filesystem::path& path : known) options.push_back({Option::nvme_path, path.string()});
  if (known.empty()) options.push_back({Option::nvme_path, "DIR"});
}

const char* place_name(Placement place) {
  if (place == Placement::none) return "on the device";
  return place == Placement::cpu ? "in host memory" : "on nvme";
}

Change placement_change(const PlacementConfig& now, Placement parameters, Placement states) {
  const bool moves_parameters = parameters != now.parameters;
  const bool moves_states = states != now.states;
  std::vector<ChangedOption> options;
  if (moves_parameters) options.push_back({Option::parameters, std::string(name_of(parameters))});
  if (moves_states) options.push_back({Option::states, std::string(name_of(states))});
  add_folders(now, parameters, states, options);
  std::string effect;
  if (moves_parameters && moves_states && parameters == states) {
    effect = fmt::format("parameters and states {}", place_name(states));
  } else {
    if (moves_parameters) effect = fmt::format("parameters {}", place_name(parameters));
    if (moves_states) effect += fmt::format("{}states {}", effect.empty() ? "" : ", ", place_name(states));
  }
  return {ChangeKind::placement, std::move(options), std::move(effect),
          [parameters, states](ChangeableRun& run) { place(parameters, states, run.config.placement); }};
}

// What is slower later, and what asks more of the device last.
void add_placements(const PlacementConfig& now, std::vector<Change>& changes) {
  using enum Placement;
  const std::pair<Placement, Placement> places[] = {
      {now.parameters, cpu}, {cpu, cpu},   {now.parameters, nvme}, {cpu, nvme}, {nvme, nvme}, {nvme, cpu},
      {none, cpu},           {none, nvme}, {none, none},           {cpu, none}, {nvme, none}};
  std::vector<std::pair<Placement, Placement>> seen = {{now.parameters, now.states}};
  for (const auto& [parameters, states] : places) {
    const std::pair<Placement, Placement> both = {parameters, states};
    bool is_new = true;
    for (const auto& other : seen) is_new = is_new && other != both;
    if (!is_new) continue;
    seen.push_back(both);
    changes.push_back(placement_change(now, parameters, states));
  }
}

void add_smaller_micro_batches(const BatchConfig& batch, std::vector<Change>& changes) {
  for (uint32_t parts = 2; parts <= batch.micro_batch_size; parts *= 2) {
    if (batch.micro_batch_size % parts != 0) return;
    BatchConfig smaller = batch;
    smaller.micro_batch_size /= parts;
    if (smaller.micro_batches > kMostMicroBatches / parts) return;
    smaller.micro_batches *= parts;
    // An order that was asked for and had no effect with one micro-batch would have one now.
    std::vector<ChangedOption> options = {
        {Option::micro_batch_size, std::to_string(smaller.micro_batch_size)},
        {Option::micro_batches, std::to_string(smaller.micro_batches)}};
    if (batch.micro_batches == 1) options.push_back({Option::layer_major, "false"});
    changes.push_back({ChangeKind::batch, std::move(options), "the same batch in smaller pieces",
                       [smaller](ChangeableRun& run) {
                         run.config.batch.micro_batch_size = smaller.micro_batch_size;
                         run.config.batch.micro_batches = smaller.micro_batches;
                       }});
  }
}

void add_smaller_chunks(const TerraceConfig& terrace, std::vector<Change>& changes) {
  if (!terrace.chunk_elements) return;
  for (uint64_t elements = *terrace.chunk_elements / 2 / kTileElements * kTileElements; elements > 0;
       elements = elements / 2 / kTileElements * kTileElements) {
    changes.push_back({ChangeKind::chunks,
                       {{Option::chunk_elements, std::to_string(elements)}},
                       "smaller chunks",
                       [elements](ChangeableRun& run) { run.config.terrace.chunk_elements = elements; }});
  }
}

}  // namespace

std::vector<Change> possible_changes(const TrainConfig& config, const ModelConfig& model) {
  std::vector<Change> changes;
  const std::optional<UpdateMode> update = config.terrace.update;
  if (update && *update != UpdateMode::after_backward && config.placement.parameters == Placement::none)
    changes.push_back({ChangeKind::update,
                       {{Option::update_when, "after_backward"}},
                       "updates of their own after backward, with the same numbers",
                       [](ChangeableRun& run) { run.config.terrace.update = UpdateMode::after_backward; }});
  add_placements(config.placement, changes);
  if (config.placement.states != Placement::none && config.placement.processor_share < 1)
    changes.push_back({ChangeKind::update_side,
                       {{Option::processor_share, "1"}},
                       "no update on the device",
                       [](ChangeableRun& run) { run.config.placement.processor_share = 1; }});
  const ActivationConfig& activations = config.activations;
  if (activations.checkpoint && !activations.checkpoint_for_order &&
      activations.offload == ActivationOffload::none)
    changes.push_back({ChangeKind::activations,
                       {{Option::offload_activations, "cpu"}},
                       "checkpointed activations in host memory",
                       [](ChangeableRun& run) { run.config.activations.offload = ActivationOffload::cpu; }});
  if (config.batch.layer_major)
    changes.push_back({ChangeKind::order,
                       {{Option::layer_major, "false"}},
                       "micro-batches one after the other, with the same numbers",
                       [](ChangeableRun& run) {
                         run.config.batch.layer_major = false;
                         ActivationConfig& kept = run.config.activations;
                         if (std::exchange(kept.checkpoint_for_order, false)) kept.checkpoint = false;
                       }});
  add_smaller_micro_batches(config.batch, changes);
  add_smaller_chunks(config.terrace, changes);
  if (config.precision == DataType::bf16 && !config.terrace.compact_state)
    changes.push_back({ChangeKind::master,
                       {{Option::masters, "true"}},
                       "2 bytes of a master weight instead of 4, with the same numbers",
                       [](ChangeableRun& run) { run.config.terrace.compact_state = true; }});
  if (config.placement.states == Placement::nvme && config.terrace.durable)
    changes.push_back({ChangeKind::durability,
                       {{Option::durable, "false"}},
                       "no way back to the last commit after a crash",
                       [](ChangeableRun& run) { run.config.terrace.durable = false; }});
  if (config.precision == DataType::fp32)
    changes.push_back({ChangeKind::precision,
                       {{Option::precision, "bf16"}},
                       "parameters and gradients in 16 bits",
                       [](ChangeableRun& run) { run.config.precision = DataType::bf16; }});
  for (uint32_t context = model.context / 2; context >= kShortestContext; context /= 2)
    changes.push_back({ChangeKind::context,
                       {{Option::context, std::to_string(context)}},
                       "shorter sequences",
                       [context](ChangeableRun& run) { run.model.context = context; }});
  return changes;
}

std::string effect_of(const std::vector<const Change*>& changes) {
  std::string effect;
  for (const Change* change : changes) effect += (effect.empty() ? "" : ", ") + change->effect;
  return effect;
}

}  // namespace terrace
