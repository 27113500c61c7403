// The learning-rate scheduler: which keys belong to which, and what they leave to the optimizer.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/resolve/internal/resolver.h>

namespace terrace {
namespace {

constexpr std::string_view kSchedulerParams = "scheduler.params.";
constexpr auto kOptimizerRates = std::to_array<std::string_view>(
    {"optimizer.params.lr", "optimizer.params.muon_lr", "optimizer.params.adam_lr"});
constexpr std::string_view kTotalSteps = "scheduler.params.total_num_steps";
constexpr std::string_view kWarmupMin = "scheduler.params.warmup_min_lr";
constexpr std::string_view kWarmupMax = "scheduler.params.warmup_max_lr";
constexpr std::string_view kWarmupSteps = "scheduler.params.warmup_num_steps";
constexpr std::string_view kCycleMin = "scheduler.params.cycle_min_lr";
constexpr std::string_view kCycleMax = "scheduler.params.cycle_max_lr";
constexpr std::string_view kRangeMin = "scheduler.params.lr_range_test_min_lr";
constexpr std::string_view kMomentumMin = "scheduler.params.cycle_min_mom";
constexpr std::string_view kMomentumMax = "scheduler.params.cycle_max_mom";

// Hugging Face's trainer fills "auto" with its own warm-up, which is none; DeepSpeed wants one step at least.
constexpr uint64_t kAutoWarmupSteps = 1;
constexpr double kDecayMaximum = 1e-3;  // of WarmupDecayLR

constexpr auto kKinds = std::to_array<LrScheduleKind>(
    {LrScheduleKind::linear, LrScheduleKind::warmup, LrScheduleKind::warmup_decay,
     LrScheduleKind::warmup_cosine, LrScheduleKind::one_cycle, LrScheduleKind::range_test});

// The constant schedule where the name is none.
LrScheduleKind kind_from(std::string_view name) {
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](LrScheduleKind kind) { return name_of(kind) == name; });
  return found == kKinds.end() ? LrScheduleKind::constant : *found;
}

bool is_warmup(LrScheduleKind kind) {
  return kind == LrScheduleKind::warmup || kind == LrScheduleKind::warmup_decay ||
         kind == LrScheduleKind::warmup_cosine;
}

bool belongs_to(LrScheduleKind kind, std::string_view key) {
  const bool cosine = kind == LrScheduleKind::warmup_cosine;
  if (key == "last_batch_iteration") return true;
  const bool linear = kind == LrScheduleKind::linear;
  if (key == "total_num_steps") return cosine || linear || kind == LrScheduleKind::warmup_decay;
  if (key == "warmup_min_lr" || key == "warmup_max_lr") return is_warmup(kind) && !cosine;
  if (key == "warmup_min_ratio" || key == "cos_min_ratio") return cosine;
  if (key.starts_with("warmup_")) return is_warmup(kind);
  if (key.starts_with("lr_range_test_")) return kind == LrScheduleKind::range_test;
  return kind == LrScheduleKind::one_cycle;
}

// The optimizer's own rates: one, or as check_group_lists() counts the groups without those of the
// configuration.
std::vector<double> rates_of(const OptimizerConfig& optimizer) {
  const double rate = optimizer.learning_rate;
  const bool has_matrices = row_of(optimizer.type).kind == OptimizerKind::muon;
  if (!has_matrices || optimizer.matrix_learning_rate == rate) return {rate};
  return {rate, rate, optimizer.matrix_learning_rate};
}

}  // namespace

void Resolver::resolve_scheduler() {
  LrScheduleOptions& schedule = config_.schedule;
  const std::string type = text("scheduler.type", "");
  schedule.kind = kind_from(type);
  schedule.base_lr = {config_.optimizer.learning_rate};
  if (type.empty()) {
    for (const auto& [path, entry] : entries_.all()) {
      if (path.starts_with(kSchedulerParams))
        problems_.add(entry, fmt::format("{} is given, but scheduler.type is not", entry.written_key));
    }
    if (!comes_with_a_trainer() || entries_.has_section("scheduler")) return;
    schedule.kind = LrScheduleKind::linear;
    record("scheduler.type", json_quoted(name_of(schedule.kind)), kTrainersOwn);
    return;
  }
  check_scheduler_keys();
  if (schedule.kind == LrScheduleKind::linear) schedule.total_step_count = optional_integer(kTotalSteps);
  if (is_warmup(schedule.kind)) resolve_warmup();
  if (schedule.kind == LrScheduleKind::one_cycle) resolve_cycle();
  if (schedule.kind == LrScheduleKind::range_test) resolve_range_test();
  if (!for_engine_) check_group_lists();
  warn_of_idle_rates();
}

// DeepSpeed passes the keys to the scheduler's constructor, which does not know another one's.
void Resolver::check_scheduler_keys() {
  const LrScheduleKind kind = config_.schedule.kind;
  for (const auto& [path, entry] : entries_.all()) {
    if (!path.starts_with(kSchedulerParams)) continue;
    const std::string_view key = std::string_view(path).substr(kSchedulerParams.size());
    if (belongs_to(kind, key)) continue;
    if (path == kTotalSteps) {
      idle_.push_back({entry.written_key, fmt::format("{} does not decay", name_of(kind))});
      continue;
    }
    problems_.add(entry,
                  fmt::format("{} is not a key of {}; it belongs to {}", entry.written_key, name_of(kind),
                              name_of(*std::find_if(kKinds.begin(), kKinds.end(), [&](LrScheduleKind other) {
                                return belongs_to(other, key);
                              }))));
  }
}

void Resolver::resolve_warmup() {
  LrScheduleOptions& schedule = config_.schedule;
  if (schedule.kind == LrScheduleKind::warmup_cosine) {
    schedule.warmup_min_ratio = number("scheduler.params.warmup_min_ratio", schedule.warmup_min_ratio);
    schedule.cos_min_ratio = number("scheduler.params.cos_min_ratio", schedule.cos_min_ratio);
  } else {
    schedule.minimum_lr = numbers(kWarmupMin, {0.0});
    const bool own = schedule.kind == LrScheduleKind::warmup || is_auto(kWarmupMax);
    const std::vector<double> maximum =
        numbers(kWarmupMax, own ? rates_of(config_.optimizer) : std::vector<double>{kDecayMaximum});
    schedule.maximum_lr = own && given(kWarmupMax) == nullptr ? std::vector<double>{} : maximum;
  }
  schedule.warmup_step_count =
      integer(kWarmupSteps, is_auto(kWarmupSteps) ? kAutoWarmupSteps : schedule.warmup_step_count);
  schedule.warmup_shape =
      text("scheduler.params.warmup_type", "log") == "log" ? WarmupShape::log : WarmupShape::linear;
  if (schedule.kind == LrScheduleKind::warmup) return;
  schedule.total_step_count = optional_integer(kTotalSteps);
  if (schedule.total_step_count && *schedule.total_step_count < schedule.warmup_step_count) {
    config_.warnings.push_back(
        fmt::format("{} is {}, less than the {} steps of warm-up: the rate never reaches its peak",
                    named(*given(kTotalSteps)), *schedule.total_step_count, schedule.warmup_step_count));
  }
}

void Resolver::resolve_cycle() {
  LrScheduleOptions& schedule = config_.schedule;
  OneCycleOptions& cycle = schedule.cycle;
  for (const std::string_view path : {kCycleMin, kCycleMax}) {
    if (given(path) == nullptr)
      problems_.add({.origin = entries_.find("scheduler.type")->written_at,
                     .key = std::string(path),
                     .text = fmt::format("OneCycle needs {}", path)});
  }
  schedule.minimum_lr = numbers(kCycleMin, {0.0});
  schedule.maximum_lr = numbers(kCycleMax, {config_.optimizer.learning_rate});
  check_cycle_order();
  cycle.decay_lr_rate = number("scheduler.params.decay_lr_rate", cycle.decay_lr_rate);
  cycle.first_step_count = integer("scheduler.params.cycle_first_step_size", cycle.first_step_count);
  cycle.second_step_count = optional_integer("scheduler.params.cycle_second_step_size");
  cycle.first_stair_count = integer("scheduler.params.cycle_first_stair_count", cycle.first_stair_count);
  cycle.second_stair_count = optional_integer("scheduler.params.cycle_second_stair_count");
  cycle.decay_step_size = integer("scheduler.params.decay_step_size", cycle.decay_step_size);
  cycle.cycle_momentum = boolean("scheduler.params.cycle_momentum", cycle.cycle_momentum);
  cycle.minimum_momentum = numbers(kMomentumMin, cycle.minimum_momentum);
  cycle.maximum_momentum = numbers(kMomentumMax, cycle.maximum_momentum);
  cycle.decay_momentum_rate = number("scheduler.params.decay_mom_rate", cycle.decay_momentum_rate);
  if (cycle.cycle_momentum && !row_of(config_.optimizer.type).has_betas) {
    // As in DeepSpeed, which says so too.
    cycle.cycle_momentum = false;
    config_.warnings.push_back(fmt::format(
        "OneCycle does not cycle the momentum (scheduler.params.cycle_momentum): {} has no betas{}",
        optimizer_named(), row_of(config_.optimizer.type).kind == OptimizerKind::muon ? " of its own" : ""));
  }
  const ConfigEntry* betas = given("optimizer.params.betas");
  if (cycle.cycle_momentum && betas != nullptr) {
    config_.warnings.push_back(
        fmt::format("{} has no effect: OneCycle sets both betas, the second one to 0.99 as DeepSpeed does "
                    "(scheduler.params.cycle_momentum)",
                    named(*betas)));
  }
}

// Of every group. Where a group is missing from a list, check_group_lists() says so.
void Resolver::check_cycle_order() {
  const std::vector<double>& lowest = config_.schedule.minimum_lr;
  const std::vector<double>& highest = config_.schedule.maximum_lr;
  if (given(kCycleMin) == nullptr || given(kCycleMax) == nullptr) return;
  for (size_t i = 0; i < std::max(lowest.size(), highest.size()); ++i) {
    const double low = lowest[std::min(i, lowest.size() - 1)];
    const double high = highest[std::min(i, highest.size() - 1)];
    if (low <= high) continue;
    const ConfigEntry& entry = *given(kCycleMin);
    problems_.add(entry, fmt::format("{} is {}, more than the {} of {}", entry.written_key, low, high,
                                     named(*given(kCycleMax))));
    return;
  }
}

void Resolver::resolve_range_test() {
  RangeTestOptions& test = config_.schedule.range_test;
  config_.schedule.minimum_lr = numbers(kRangeMin, {1e-3});
  test.step_size = integer("scheduler.params.lr_range_test_step_size", test.step_size);
  test.step_rate = number("scheduler.params.lr_range_test_step_rate", test.step_rate);
  test.staircase = boolean("scheduler.params.lr_range_test_staircase", test.staircase);
}

// Every group list has as many entries as there are groups: those of the configuration, and the two that
// every model has, beside which Muon has matrices.
void Resolver::check_group_lists() {
  const bool has_matrices = row_of(config_.optimizer.type).kind == OptimizerKind::muon;
  const size_t group_count = config_.parameter_groups.size() + (has_matrices ? 3 : 2);
  for (const std::string_view path :
       {kWarmupMin, kWarmupMax, kCycleMin, kCycleMax, kRangeMin, kMomentumMin, kMomentumMax}) {
    const ConfigEntry* entry = given(path);
    if (entry == nullptr || !entry->value.is(JsonNode::Kind::list)) continue;
    const size_t count = entry->value.items.size();
    if (count == 1 || count == group_count) continue;
    problems_.add(
        *entry,
        fmt::format("{} has {} values; it needs one, or {}: {}weights that decay, weights that do not{}",
                    entry->written_key, count, group_count,
                    config_.parameter_groups.empty() ? "" : "each of terrace.parameter_groups, other ",
                    has_matrices ? ", matrices" : ""));
  }
}

void Resolver::warn_of_idle_rates() {
  const LrScheduleOptions& schedule = config_.schedule;
  std::string_view setter;
  if (schedule.kind == LrScheduleKind::range_test) setter = kRangeMin;
  if (schedule.kind == LrScheduleKind::one_cycle) setter = kCycleMax;
  if (schedule.kind != LrScheduleKind::range_test && !schedule.maximum_lr.empty() && setter.empty())
    setter = kWarmupMax;
  if (setter.empty()) return;
  const ConfigEntry* entry = given(setter);
  const std::string cause = fmt::format(
      "{} sets the learning rate", entry != nullptr ? named(*entry) : std::string(setter) + " (default)");
  for (const std::string_view path : kOptimizerRates) {
    const ConfigEntry* rate = given(path);
    if (rate != nullptr && schedule.maximum_lr != rates_of(config_.optimizer))
      config_.warnings.push_back(fmt::format("{} has no effect: {}", named(*rate), cause));
  }
  const auto groups = entries_.items("terrace.parameter_groups");
  for (const ConfigEntries::EntryMap& group : groups) {
    const auto own = group.find("terrace.parameter_groups.lr");
    if (own != group.end())
      config_.warnings.push_back(fmt::format("{} has no effect: {}", named(own->second), cause));
  }
}

}  // namespace terrace
