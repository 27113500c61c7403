// Activations that a program of C saves within a training: they come back as they were, and change nothing of
// it.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include <terrace_run.h>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::c_activations_test {
namespace {

using capi::Case;
using capi::expect_kind;
using capi::is_well;
using capi::Training;

constexpr uint64_t kElements = 100'000;  // two units on nvme

std::vector<float> values_of(uint32_t seed) {
  std::vector<float> values(kElements);
  std::iota(values.begin(), values.end(), static_cast<float>(seed));
  return values;
}

uint64_t save(terrace_store* store, uint32_t seed) {
  const std::vector<float> values = values_of(seed);
  uint64_t saved = 0;
  is_well(terrace_start_save(store, values.data(), kElements * sizeof(float), &saved));
  is_well(terrace_finish_save(store, saved));
  return saved;
}

void take_back(terrace_store* store, uint64_t saved, uint32_t seed) {
  std::vector<float> found(kElements);
  is_well(terrace_start_load(store, saved, found.data(), nullptr));
  is_well(terrace_finish_load(store, saved));
  EXPECT_EQ(found, values_of(seed));
  is_well(terrace_drop_saved(store, &saved, 1));
}

terrace_saved_use use_of(terrace_store* store) {
  terrace_saved_use use = TERRACE_INIT(terrace_saved_use);
  is_well(terrace_saved_use_of(store, &use));
  return use;
}

TEST(CActivations, AreSavedAnywhereInATrainingAndChangeNoBit) {
  for (const uint32_t saved : {TERRACE_CPU, TERRACE_NVME}) {
    for (Case c : {Case{}, capi::kOnNvme, Case{.parameters = TERRACE_DEVICE, .states = TERRACE_CPU}}) {
      const ScratchFolder folder, other;
      Training plain(c, other.path());
      for (uint64_t step = 1; step <= 2; ++step) plain.step(step);
      c.saved = saved;
      Training training(c, folder.path());
      std::vector<uint64_t> numbers;
      for (uint64_t step = 1; step <= 2; ++step) {
        training.step(step, [&](const char*) {
          if (numbers.size() < 3)
            numbers.push_back(save(training.get(), static_cast<uint32_t>(numbers.size())));
        });
        while (!numbers.empty()) {
          const uint64_t last = numbers.back();
          numbers.pop_back();
          take_back(training.get(), last, static_cast<uint32_t>(numbers.size()));
        }
      }
      EXPECT_EQ(training.state(), plain.state());
      const terrace_saved_use use = use_of(training.get());
      EXPECT_EQ(use.saved_count, 0u);
      EXPECT_GT(use.host_peak_bytes, 0u);
      EXPECT_LE(use.host_peak_bytes, use.host_most_bytes);
    }
  }
}

TEST(CActivations, AreRefusedByAStoreThatSavesNone) {
  const ScratchFolder folder;
  Training training(Case{}, folder.path());
  uint64_t saved = 0;
  expect_kind(TERRACE_CONFIG, terrace_start_save(training.get(), "x", 1, &saved));
  EXPECT_EQ(use_of(training.get()).host_most_bytes, 0u);
}

TEST(CActivations, WithoutRoomNameTheLeastHostBudgetAndTheStoreGoesOn) {
  const ScratchFolder folder;
  Training training({.saved = TERRACE_CPU}, folder.path());
  const uint64_t most = use_of(training.get()).host_most_bytes;
  const std::vector<std::byte> values(most + 1);
  uint64_t saved = 0;
  terrace_error* const error = terrace_start_save(training.get(), values.data(), most + 1, &saved);
  terrace_error_parts parts = TERRACE_INIT(terrace_error_parts);
  terrace_error_get(error, &parts);
  uint64_t budget = 0, least = 0;
  is_well(terrace_host_budget(training.get(), &budget, &least));
  EXPECT_GT(parts.least_host_bytes, budget);
  EXPECT_LE(parts.least_host_bytes, budget + 4096);
  expect_kind(TERRACE_CAPACITY, error);
  training.step(1);
}

TEST(CActivations, GoWithASmallerHostBudget) {
  const ScratchFolder folder;
  Case c = capi::kOnNvme;
  c.saved = TERRACE_CPU;
  Training training(c, folder.path());
  training.step(1);
  uint64_t budget = 0, least = 0;
  is_well(terrace_host_budget(training.get(), &budget, &least));
  const uint64_t saved = save(training.get(), 1);
  expect_kind(TERRACE_MISUSE, terrace_set_host_budget(training.get(), least));
  take_back(training.get(), saved, 1);
  is_well(terrace_set_host_budget(training.get(), least));
  EXPECT_EQ(use_of(training.get()).host_held_bytes, 0u);
  is_well(terrace_set_host_budget(training.get(), budget));
  take_back(training.get(), save(training.get(), 2), 2);
  training.step(2);
}

}  // namespace
}  // namespace terrace::c_activations_test
