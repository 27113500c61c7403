#include <terrace/runtime/config/parameter_groups.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/name_pattern.h>

namespace terrace {
namespace {

constexpr std::string_view kGroupsKey = "terrace.parameter_groups";
constexpr uint32_t kGroupKinds = 2;   // weights that decay, and weights that do not
constexpr uint32_t kMatrixGroup = 2;  // beside them with Muon
static_assert(kDecayGroup == 0 && kNoDecayGroup == 1);

bool has_matrices(const TrainConfig& config) {
  return row_of(config.optimizer.type).kind == OptimizerKind::muon;
}

uint32_t group_kinds(const TrainConfig& config) {
  return has_matrices(config) ? kGroupKinds + 1 : kGroupKinds;
}

// The name that weight files have for it: large tables are several tensors, "wte.weight[0]" and so on.
std::string weight_name(const TensorSpec& tensor) {
  return tensor.name.ends_with(']') ? tensor.name.substr(0, tensor.name.rfind('[')) : tensor.name;
}

// The place of the first group that matches, or their number.
size_t group_of(const std::vector<GroupConfig>& groups, const std::string& name) {
  const auto found = std::find_if(groups.begin(), groups.end(),
                                  [&](const GroupConfig& group) { return matches_any(group.match, name); });
  return static_cast<size_t>(found - groups.begin());
}

std::string origin_of_groups(const TrainConfig& config) {
  const auto found = std::find_if(config.resolved.begin(), config.resolved.end(),
                                  [](const ResolvedValue& value) { return value.key == kGroupsKey; });
  return found == config.resolved.end() ? std::string(kGroupsKey) : found->origin;
}

// The three names that the pattern would match after the fewest changes.
std::string nearest_names(const std::string& pattern, std::span<const TensorSpec> tensors) {
  constexpr size_t kShown = 3;
  std::vector<std::pair<size_t, std::string>> near;
  for (const TensorSpec& tensor : tensors) {
    const std::string name = weight_name(tensor);
    if (near.empty() || near.back().second != name) near.emplace_back(pattern_distance(pattern, name), name);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string names;
  for (size_t i = 0; i < std::min(kShown, near.size()); ++i)
    names += (i == 0 ? "" : ", ") + json_quoted(near[i].second);
  return names;
}

void check_patterns(const TrainConfig& config, std::span<const TensorSpec> tensors) {
  for (size_t i = 0; i < config.parameter_groups.size(); ++i) {
    for (const std::string& pattern : config.parameter_groups[i].match) {
      const bool matches = std::any_of(tensors.begin(), tensors.end(), [&](const TensorSpec& tensor) {
        return matches_pattern(pattern, weight_name(tensor));
      });
      if (matches) continue;
      throw Error(ErrorKind::config,
                  {fmt::format("{}: {}[{}].match: no weight is called {}", origin_of_groups(config),
                               kGroupsKey, i, json_quoted(pattern, 60)),
                   "", fmt::format("the nearest names are {}", nearest_names(pattern, tensors)),
                   "patterns match whole names; * stands for any text"});
    }
  }
}

// Of tensors that are no matrices of Muon.
OptimizerSettings optimizer_settings(const OptimizerConfig& optimizer) {
  OptimizerSettings settings;
  settings.kind = row_of(optimizer.type).kind;
  if (settings.kind == OptimizerKind::muon) settings.kind = OptimizerKind::adam;
  settings.lr = optimizer.learning_rate;
  settings.beta1 = optimizer.beta1;
  settings.beta2 = optimizer.beta2;
  settings.eps = optimizer.epsilon;
  settings.weight_decay = optimizer.weight_decay;
  settings.adamw_mode = optimizer.decoupled_weight_decay;
  settings.bias_correction = optimizer.bias_correction;
  settings.momentum = optimizer.momentum;
  settings.dampening = optimizer.dampening;
  settings.nesterov = optimizer.nesterov;
  return settings;
}

OptimizerSettings matrix_settings(const OptimizerConfig& optimizer) {
  OptimizerSettings settings = optimizer_settings(optimizer);
  settings.kind = OptimizerKind::muon;
  settings.lr = optimizer.matrix_learning_rate;
  settings.eps = row_of(OptimizerType::muon).eps;
  settings.muon = optimizer.muon;
  return settings;
}

OptimizerSettings group_settings(OptimizerSettings settings, const GroupConfig& group) {
  settings.lr = group.lr.value_or(settings.lr);
  settings.beta1 = group.beta1.value_or(settings.beta1);
  settings.beta2 = group.beta2.value_or(settings.beta2);
  if (settings.kind != OptimizerKind::muon) settings.eps = group.epsilon.value_or(settings.eps);
  settings.weight_decay = group.weight_decay.value_or(settings.weight_decay);
  return settings;
}

LrSchedule make_schedule(const TrainConfig& config, uint64_t run_updates) {
  LrScheduleOptions options = config.schedule;
  if (!options.total_step_count) options.total_step_count = std::max<uint64_t>(run_updates, 1);
  return LrSchedule(options);
}

void check_momentum(const LrSchedule& schedule, uint64_t run_updates) {
  const std::optional<uint64_t> first = schedule.first_update_without_momentum();
  if (!first || *first >= run_updates) return;
  throw Error(ErrorKind::config,
              {"the scheduler OneCycle cannot be used for this run", "scheduler.params.decay_mom_rate",
               fmt::format("beta1 would reach 1 in step {} of {}", *first + 1, run_updates),
               "make decay_mom_rate smaller or decay_step_size larger, or train for fewer steps"});
}

}  // namespace

bool is_muon_matrix(const TensorSpec& tensor) {
  // As the models of Hugging Face's transformers call the modules whose rows are of tokens or positions.
  constexpr auto kTables = std::to_array<std::string_view>({"wte", "wpe", "embed_tokens", "lm_head"});
  if (!tensor.trainable || tensor.shape.size() != 2) return false;
  const std::string weight = weight_name(tensor);
  const std::string module = weight.substr(0, weight.rfind('.'));
  const size_t point = module.rfind('.');
  const std::string_view last = std::string_view(module).substr(point == std::string::npos ? 0 : point + 1);
  return std::ranges::find(kTables, last) == kTables.end();
}

RecordLayout record_layout(const TrainConfig& config) {
  RecordLayout layout;
  layout.master = config.terrace.compact_state ? MasterForm::remainder : MasterForm::whole;
  const OptimizerKind kind = row_of(config.optimizer.type).kind;
  layout.moment_count = moment_count(kind, config.optimizer.momentum);
  if (kind == OptimizerKind::muon) layout.moment_count = moment_count(OptimizerKind::adam);
  layout.moment_type = config.optimizer.moment_type;
  return layout;
}

void resolve_parameter_groups(const TrainConfig& config, std::span<TensorSpec> tensors) {
  check_patterns(config, tensors);
  for (TensorSpec& tensor : tensors) {
    TERRACE_ASSERT(tensor.group < kGroupKinds, tensor.name + " has been given its group already");
    tensor.by_matrix = has_matrices(config) && is_muon_matrix(tensor);
    if (tensor.by_matrix) tensor.group = kMatrixGroup;
    tensor.group +=
        group_kinds(config) * static_cast<uint32_t>(group_of(config.parameter_groups, weight_name(tensor)));
  }
}

GroupSettings::GroupSettings(const TrainConfig& config, uint64_t run_updates)
    : schedule_(make_schedule(config, run_updates)) {
  check_momentum(schedule_, run_updates);
  uint32_t position = 0;
  const OptimizerSettings own = optimizer_settings(config.optimizer);
  const OptimizerSettings matrices = matrix_settings(config.optimizer);
  for (const GroupConfig& group : config.parameter_groups) {
    OptimizerSettings settings = group_settings(own, group);
    groups_.push_back({settings, position});
    if (!group.weight_decay) settings.weight_decay = 0;
    groups_.push_back({settings, position});
    if (has_matrices(config)) groups_.push_back({group_settings(matrices, group), position});
    ++position;
  }
  OptimizerSettings rest = own;
  groups_.push_back({rest, position});
  rest.weight_decay = 0;
  groups_.push_back({rest, position + 1});
  if (has_matrices(config)) groups_.push_back({matrices, position + 2});
  current_.resize(groups_.size());
}

std::span<const OptimizerSettings> GroupSettings::at(uint64_t update) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    const ScheduledValues values = schedule_.at(update, group.schedule_group, group.settings.lr);
    current_[i] = group.settings;
    current_[i].lr = values.lr;
    current_[i].beta1 = values.beta1.value_or(current_[i].beta1);
    current_[i].beta2 = values.beta2.value_or(current_[i].beta2);
  }
  return current_;
}

std::string schedule_warning(const LrScheduleOptions& schedule, uint64_t run_updates) {
  const bool warms_up = schedule.kind == LrScheduleKind::warmup ||
                        schedule.kind == LrScheduleKind::warmup_decay ||
                        schedule.kind == LrScheduleKind::warmup_cosine;
  if (!warms_up || schedule.warmup_step_count < run_updates) return "";
  return fmt::format(
      "{} warms up for {} steps (scheduler.params.warmup_num_steps), the run has {}: the rate never reaches "
      "its peak",
      name_of(schedule.kind), schedule.warmup_step_count, run_updates);
}

}  // namespace terrace
