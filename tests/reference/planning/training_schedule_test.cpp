// Recorded schedules of models: what of them is known beforehand, and how policies do on them.
#include <terrace/reference/planning/training_schedule.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>

#include <terrace/base/workers.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/sim/lower_bound.h>
#include <terrace/sim/simulation.h>

#include "support/sanitized.h"

namespace terrace::training_schedule_test {
namespace {

ModelConfig tiny_model(ModelFamily family, bool tied) {
  ModelConfig model;
  model.family = family;
  model.layers = 4;
  model.heads = 4;
  model.width = 64;
  model.context = 32;
  model.vocabulary = 512;
  model.tied_embeddings = tied;
  return completed(model);
}

SimSchedule recorded(ModelFamily family, bool tied, uint32_t accumulation) {
  const ConfigOverride overrides[] = {{"bf16.enabled", "true", "test"},
                                      {"gradient_accumulation_steps", std::to_string(accumulation), "test"}};
  const TrainConfig config = default_train_config(overrides);
  const std::unique_ptr<Model> model = make_model(tiny_model(family, tied), model_options(config));
  Workers workers(1);
  TrainingScheduleOptions options;
  options.chunk_elements = 4 * kTileElements;
  return training_schedule(*model, config, run_dry(*model, config, workers), options);
}

// All micro-batches of an operation before the next one; updates stay last.
SimSchedule layer_major(SimSchedule schedule) {
  std::vector<std::pair<uint64_t, SimUse>> ordered;
  std::map<std::string, uint64_t> counts;
  for (SimUse& use : schedule.uses) {
    const std::string micro_batch = use.operation.substr(0, use.operation.find('/'));
    const bool is_update = use.tier > 0;
    ordered.emplace_back(is_update ? UINT64_MAX : counts[micro_batch]++, std::move(use));
  }
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<bool> is_made(schedule.items.size(), false);
  schedule.uses.clear();
  for (auto& [position, use] : ordered) {
    // Which use comes first has changed, and with it who makes a gradient.
    std::vector<uint32_t> touched = use.makes;
    if (use.tier == 0) {
      touched.insert(touched.end(), use.changes.begin(), use.changes.end());
      std::sort(touched.begin(), touched.end());
      use.makes.clear();
      use.changes.clear();
      for (const uint32_t item : touched) {
        (is_made[item] ? use.changes : use.makes).push_back(item);
        is_made[item] = true;
      }
    }
    schedule.uses.push_back(std::move(use));
  }
  return schedule;
}

// Described, not recorded: in each layer the tokens go to some of the experts.
SimSchedule mixture_of_experts() {
  constexpr uint32_t kLayers = 4, kExperts = 6, kChosen = 3, kParts = kExperts + 1;
  SimSchedule schedule{"experts", {}, {}};
  for (uint32_t i = 0; i < kLayers * kParts; ++i)
    schedule.items.push_back({"param " + std::to_string(i), 32768, SimRole::param, 2});
  for (uint32_t i = 0; i < kLayers * kParts; ++i)
    schedule.items.push_back({"grad " + std::to_string(i), 32768, SimRole::grad, 1});
  for (uint32_t i = 0; i < kLayers * kParts; ++i)
    schedule.items.push_back({"state " + std::to_string(i), 196608, SimRole::state, 2});
  std::mt19937_64 random(5);
  std::vector<std::vector<uint32_t>> groups;
  for (uint32_t l = 0; l < kLayers; ++l) {
    std::vector<uint32_t> experts;
    for (uint32_t e = 1; e <= kExperts; ++e) experts.push_back(l * kParts + e);
    for (size_t i = 0; i < experts.size(); ++i)
      std::swap(experts[i], experts[i + random() % (experts.size() - i)]);
    groups.push_back({l * kParts});
    for (uint32_t e = 0; e < kChosen; ++e) groups.push_back({experts[e]});
  }
  for (const auto& group : groups) schedule.uses.push_back({"forward", 0, group, {}, {}, 100'000, {}});
  for (size_t g = groups.size(); g-- > 0;) {
    SimUse use{"backward", 0, groups[g], {}, {}, 200'000, {}};
    for (const uint32_t item : groups[g]) use.makes.push_back(item + kLayers * kParts);
    schedule.uses.push_back(std::move(use));
  }
  for (const auto& group : groups) {
    const uint32_t item = group[0];
    schedule.uses.push_back(
        {"update", 1, {item + kLayers * kParts}, {item, item + 2 * kLayers * kParts}, {}, 50'000, {}});
  }
  return schedule;
}

std::vector<std::pair<std::string, SimSchedule>> six_schedules() {
  return {{"gpt2", recorded(ModelFamily::gpt2, false, 1)},
          {"llama", recorded(ModelFamily::llama, false, 1)},
          {"tied", recorded(ModelFamily::gpt2, true, 1)},
          {"accumulation 4", recorded(ModelFamily::gpt2, false, 4)},
          {"layer-major", layer_major(recorded(ModelFamily::gpt2, false, 4))},
          {"experts", mixture_of_experts()}};
}

// Parameters alone, all of one size: nothing that the device has is newer than what is below.
SimSchedule equal_and_clean(SimSchedule schedule) {
  std::vector<uint32_t> number(schedule.items.size(), UINT32_MAX);
  std::vector<SimItem> params;
  for (uint32_t i = 0; i < schedule.items.size(); ++i) {
    if (schedule.items[i].role != SimRole::param) continue;
    number[i] = static_cast<uint32_t>(params.size());
    params.push_back(schedule.items[i]);
    params.back().bytes = 32768;
    params.back().home_tier = 1;
  }
  schedule.items = std::move(params);
  for (SimUse& use : schedule.uses) {
    use.occupied_bytes.clear();
    for (auto* list : {&use.reads, &use.changes, &use.makes}) {
      std::vector<uint32_t> kept;
      for (const uint32_t i : *list) {
        if (number[i] != UINT32_MAX) kept.push_back(number[i]);
      }
      *list = std::move(kept);
    }
  }
  return schedule;
}

uint64_t least_device_bytes(const SimSchedule& schedule) {
  uint64_t least = 0;
  for (const SimUse& use : schedule.uses) {
    uint64_t bytes = use.occupied_bytes.empty() ? 0 : use.occupied_bytes[0];
    if (use.tier > 0) continue;
    for (const auto* list : {&use.reads, &use.changes, &use.makes}) {
      for (const uint32_t i : *list) bytes += schedule.items[i].bytes;
    }
    least = std::max(least, bytes);
  }
  return least;
}

uint64_t bytes_of(const SimSchedule& schedule, SimRole role) {
  uint64_t bytes = 0;
  for (const SimItem& item : schedule.items) bytes += item.role == role ? item.bytes : 0;
  return bytes;
}

TEST(TrainingSchedule, HasTheChunksAndUsesOfTheModel) {
  const SimSchedule schedule = recorded(ModelFamily::gpt2, false, 2);
  check_schedule(schedule);
  const uint64_t params = bytes_of(schedule, SimRole::param);
  EXPECT_EQ(bytes_of(schedule, SimRole::grad), params);
  EXPECT_EQ(bytes_of(schedule, SimRole::state), params / 2 * 12);
  std::map<uint32_t, int> made, changed_below;
  for (const SimUse& use : schedule.uses) {
    for (const uint32_t i : use.makes) ++made[i];
    for (const uint32_t i : use.changes) changed_below[i] += use.tier > 0 ? 1 : 0;
    EXPECT_GT(use.compute_ns, 0u) << use.operation;
  }
  for (uint32_t i = 0; i < schedule.items.size(); ++i) {
    const bool is_gradient = schedule.items[i].role == SimRole::grad;
    EXPECT_EQ(made[i], is_gradient ? 1 : 0) << schedule.items[i].name;
    EXPECT_EQ(changed_below[i], is_gradient ? 0 : 1) << schedule.items[i].name;
  }
}

TEST(TrainingSchedule, OptIsExactForEqualCleanChunksOfSixModels) {
  std::printf("KiB to the device per step\nschedule          room   least");
  for (const SimPolicy policy : sim_policies()) std::printf(" %11s", std::string(name_of(policy)).c_str());
  std::printf("\n");
  for (const auto& [name, full] : six_schedules()) {
    const SimSchedule schedule = equal_and_clean(full);
    const uint64_t least = least_device_bytes(schedule), all = bytes_of(schedule, SimRole::param);
    for (const uint64_t share : {0u, 25u, 50u, 75u}) {
      const SimMachine machine = {
          {{"device", least + (all - least) * share / 100}, {"host", kUnboundedBytes}}, {{1e9, 1e9, 0}}, 0};
      const LowerBound bound = lower_bound(schedule, machine, 0);
      ASSERT_EQ(bound.kind, BoundKind::exact) << name;
      std::printf("%-15s %5d %% %7.0f", name.c_str(), static_cast<int>(share), bound.bytes_per_step / 1024);
      for (const SimPolicy policy : sim_policies()) {
        const SimTraffic moved = simulate(schedule, machine, policy).links[0];
        std::printf(" %11.0f", moved.bytes() / 1024);
        EXPECT_GE(moved.bytes(), bound.bytes_per_step) << name << ", " << name_of(policy);
        if (policy == SimPolicy::opt) {
          EXPECT_EQ(moved.bytes(), bound.bytes_per_step) << name;
        }
      }
      std::printf("\n");
    }
  }
}

TEST(TrainingSchedule, NoPolicyIsUnderTheBoundWhereSizesAndWritesAreMixed) {
  std::printf("over the bound of each link\n%-15s %22s", "schedule", "bounds");
  for (const SimPolicy policy : sim_policies()) std::printf(" %15s", std::string(name_of(policy)).c_str());
  std::printf("\n");
  auto schedules = six_schedules();
  if (testing::kSanitized) schedules.resize(1);
  for (const auto& [name, schedule] : schedules) {
    const uint64_t least = least_device_bytes(schedule);
    const SimMachine machine = {
        {{"device", least * 3 / 2},
         {"host", bytes_of(schedule, SimRole::grad) +
                      (bytes_of(schedule, SimRole::param) + bytes_of(schedule, SimRole::state)) / 3},
         {"nvme", kUnboundedBytes}},
        {{1e9, 1e9, 0}, {1e9, 1e9, 0}},
        4};
    const LowerBound bounds[] = {lower_bound(schedule, machine, 0), lower_bound(schedule, machine, 1)};
    std::printf("%-15s %11s %10s", name.c_str(), std::string(name_of(bounds[0].kind)).c_str(),
                std::string(name_of(bounds[1].kind)).c_str());
    std::vector<double> moved;
    for (const SimPolicy policy : sim_policies()) {
      const SimResult result = simulate(schedule, machine, policy);
      for (size_t k = 0; k < 2; ++k) {
        std::printf("%7.1f%%", 100 * (result.links[k].bytes() / bounds[k].bytes_per_step - 1));
        EXPECT_GE(result.links[k].bytes() + 1e-3, bounds[k].bytes_per_step)
            << name << ", " << name_of(policy);
      }
      moved.push_back(result.links[0].bytes());
      EXPECT_GE(result.step_ns, result.compute_ns);
    }
    std::printf("\n");
    EXPECT_EQ(*std::min_element(moved.begin(), moved.end()), moved[0]) << name;
  }
}

}  // namespace
}  // namespace terrace::training_schedule_test
