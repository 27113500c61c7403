#include <gtest/gtest.h>

#include <array>

#include "laws/law_training.h"
#include "laws/placement_law.h"
#include "support/sanitized.h"
#include "support/scratch_folder.h"

namespace terrace::laws::placement_law_test {
namespace {

// Elements of the full product beside the covering array: this many, equally spaced.
constexpr uint64_t kExtraRuns = 120;
constexpr size_t kStride = testing::kSanitized ? 60 : 1;

void expect_holds(PlacementLaw& law, const Combination& combination) {
  EXPECT_EQ(difference(law.reference(combination), law.train(combination)), "") << describe(combination);
}

// In parts, so that none takes a processor for a minute.
constexpr size_t kParts = 3;
class PlacementLawParts : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Thirds, PlacementLawParts, ::testing::Range<size_t>(0, kParts));

TEST_P(PlacementLawParts, HoldForEveryTripleOfFactors) {
  std::vector<Combination> list = covering_array(Strength::triples);
  ASSERT_EQ(missing_triples(list), 0u);
  ASSERT_GT(missing_triples(std::span(list).first(list.size() - 1)), 0u);
  for (uint64_t r = 0; r < kExtraRuns; ++r) {
    list.push_back(product_element(r * (full_product_size() / kExtraRuns) + r));
    set_level(list.back(), kRanks, "1");
  }
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  uint64_t runs = 0;
  for (size_t i = GetParam() * kStride; i < list.size(); i += kParts * kStride) {
    ++runs;
    expect_holds(law, list[i]);
  }
  if (!testing::kSanitized) {
    EXPECT_GT(law.spilling_runs(), runs / 50) << "gradients are hardly ever spilled";
    EXPECT_GT(law.writing_runs(), runs / 20) << "inputs that are saved hardly ever go to nvme";
  }
  RecordProperty("runs", static_cast<int>(runs));
  std::printf(
      "%zu runs of %zu that cover every triple of the levels of %zu factors; gradients are spilled in %zu\n",
      static_cast<size_t>(runs), list.size(), kFactorCount, static_cast<size_t>(law.spilling_runs()));
}

// The number of ranks changes no bit, however they reach each other. bench/law_product trains every triple.
TEST(PlacementLaw, HoldsForEveryPairOverRanks) {
  const std::vector<Combination> list = covering_array_over_ranks(Strength::pairs);
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  for (size_t i = 0; i < list.size(); i += testing::kSanitized ? 10 : 1) expect_holds(law, list[i]);
}

// Groups that are summed on their hosts, each shape of them with many levels of all other factors.
TEST(PlacementLaw, HoldsWhereGroupsAreSummedOnHosts) {
  constexpr uint64_t kRunsOfEach = testing::kSanitized ? 1 : 2;
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  uint64_t runs = 0;
  for (const std::string_view ranks : {"4", "6", "8", "12"}) {
    for (const std::string_view hosts : {"2", "3", "4"}) {
      for (const std::string_view group : {"2", "4"}) {
        for (const std::string_view micro_batches : {"3", "4", "8"}) {
          for (uint64_t r = 0; r < kRunsOfEach; ++r) {
            Combination combination = product_element((runs + 1) * (full_product_size() / 100) + runs);
            set_level(combination, kRanks, ranks);
            set_level(combination, kHosts, hosts);
            set_level(combination, kGroup, group);
            set_level(combination, kAccumulation, micro_batches);
            if (!rounds_of(combination).sums_on_hosts()) continue;
            if (r == 0) {  // what crosses is kept
              set_level(combination, kHost, "ample");
              set_level(combination, kDevice, "least");
              // Ranks that pull or have NCCL keep nothing, and chunks that are few leave the device for none.
              const std::string_view back_end = level_of(combination, kBackEnd);
              if (back_end == "pulled" || back_end == "nccl") set_level(combination, kBackEnd, "messages");
              if (level_of(combination, kChunk) == "65536") set_level(combination, kChunk, "4096");
              if (hosts == "4") set_level(combination, kBackEnd, "waiting");  // by sub-groups of hosts
              if (level_of(combination, kParameters) == "none") set_level(combination, kParameters, "cpu");
            }
            ++runs;
            expect_holds(law, combination);
          }
        }
      }
    }
  }
  EXPECT_GE(runs, kRunsOfEach * 16);
  EXPECT_GE(law.keeping_runs(), 12u);
}

// From slots of leases, and from those to which what is handed over on the device was copied.
TEST(PlacementLaw, HoldsWhereGradientsGoFromDeviceToDevice) {
  constexpr std::array<std::string_view, 4> kRankCounts = {"2", "3", "5", "12"};
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  uint64_t runs = 0;
  for (const std::string_view parameters : factors()[kParameters].levels) {
    for (const std::string_view states : factors()[kStates].levels) {
      for (const std::string_view gradients : {"leases", "handed_over_on_device", "handed_over_on_device"}) {
        ++runs;
        if (testing::kSanitized && runs % 6 != 0) continue;
        Combination combination = product_element(runs * (full_product_size() / 37) + runs);
        set_level(combination, kParameters, parameters);
        set_level(combination, kStates, states);
        set_level(combination, kGradients, gradients);
        set_level(combination, kBackEnd, "nccl");
        set_level(combination, kRanks, kRankCounts[runs % kRankCounts.size()]);
        set_level(combination, kHosts, "1");
        expect_holds(law, combination);
      }
    }
  }
}

TEST(PlacementLaw, HoldsWhereMastersAreTheProgramsParameters) {
  const std::vector<Combination> list = covering_array_of_parameter_masters();
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  for (size_t i = 0; i < list.size(); i += kStride) expect_holds(law, list[i]);
}

// Every way to spill, each with many levels of all other factors, and every run of them does: the model is
// small, so that few runs of the covering array have more gradients than they have slots to spill them
// through.
TEST(PlacementLaw, HoldsWhereGradientsAreSpilled) {
  constexpr uint64_t kRunsOfEach = testing::kSanitized ? 2 : 6;
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  uint64_t runs = 0;
  for (const std::string_view places : {"none nvme", "cpu nvme", "nvme cpu", "nvme nvme"}) {
    for (const std::string_view budget : {"least", "spilling"}) {
      for (uint64_t r = 0; r < kRunsOfEach; ++r) {
        ++runs;
        Combination combination = product_element(runs * (full_product_size() / 50) + runs);
        set_level(combination, kParameters, places.substr(0, places.find(' ')));
        set_level(combination, kStates, places.substr(places.find(' ') + 1));
        set_level(combination, kHost, budget);
        set_level(combination, kChunk, "4096");
        set_level(combination, kModel, r % 2 == 0 ? "gpt2" : "llama");
        // Borrowed gradients stay in the program.
        if (level_of(combination, kGradients) == "borrowed")
          set_level(combination, kGradients, "handed_over");
        // Else a gradient lies in its parameters' place.
        if (places.starts_with("cpu")) set_level(combination, kAccumulation, "3");
        expect_holds(law, combination);
        EXPECT_EQ(law.spilling_runs(), runs) << "nothing was spilled: " << describe(combination);
      }
    }
  }
}

// Ranks hand on landings when their own shares of a chunk are complete, so one of them may wait for sums of
// others that wait for parameters by then.
TEST(PlacementLaw, HoldsWhereRanksOfHostsSpillWhatTheyAreHanded) {
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  const std::vector<Combination> list = covering_array(Strength::pairs, {{kRanks, {"3"}},
                                                                         {kHosts, {"3"}},
                                                                         {kParameters, {"divided", "cpu"}},
                                                                         {kStates, {"nvme"}},
                                                                         {kHost, {"spilling"}},
                                                                         {kChunk, {"4096"}},
                                                                         {kModel, {"qwen3"}},
                                                                         {kOptimizer, {"muon"}},
                                                                         {kTrace, {"otherwise"}},
                                                                         {kAccumulation, {"3", "8"}},
                                                                         {kRounding, {"gradients", "both"}},
                                                                         {kGradients, {"handed_over"}}});
  for (size_t i = 0; i < list.size(); i += testing::kSanitized ? 4 : 1) expect_holds(law, list[i]);
}

// Copies to a device keep their order, and one of parameters waits for their update: it is not to be before
// the states of a chunk that the device updates, whatever the step before says of uses to come.
TEST(PlacementLaw, HoldsWhereTheDeviceUpdatesAsStepsGoBackwardOtherwise) {
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  for (uint64_t run = 1; run <= (testing::kSanitized ? 4 : 40); ++run) {
    Combination combination = product_element(run * (full_product_size() / 45) + run);
    set_level(combination, kParameters, "none");
    set_level(combination, kStates, run % 4 == 0 ? "nvme" : "cpu");
    set_level(combination, kUpdate, "during_backward");
    set_level(combination, kClipping, "0");  // with a norm to come there is nothing to update in backward
    set_level(combination, kShare, run % 2 == 0 ? "0.3" : "0.5");
    set_level(combination, kTrace, "otherwise");
    set_level(combination, kPrefetch, "32");
    set_level(combination, kDeviceCopies, "thread");
    set_level(combination, kRanks, "1");
    expect_holds(law, combination);
  }
}

// The budgets at and near the least in every mode of the update, where the first step goes in another order
// than the offloader was told: what is fetched ahead for a use that is over has no room to be of no use.
TEST(PlacementLaw, HoldsAtTheLeastBudgetsWhereStepsGoOtherwise) {
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  uint64_t runs = 0;
  for (const std::string_view update : factors()[kUpdate].levels) {
    for (const std::string_view gradients : {"leases", "handed_over"}) {
      for (const std::string_view device : {"least", "near"}) {
        for (const std::string_view host : {"least", "near", "ample"}) {
          ++runs;
          Combination combination = product_element(runs * (full_product_size() / 60) + runs);
          set_level(combination, kTrace, "otherwise");
          set_level(combination, kUpdate, update);
          set_level(combination, kGradients, gradients);
          set_level(combination, kDevice, device);
          set_level(combination, kHost, host);
          set_level(combination, kRanks, "1");
          set_level(combination, kParameters, runs % 2 == 0 ? "cpu" : "nvme");
          set_level(combination, kStates, runs % 3 == 0 ? "nvme" : "cpu");
          set_level(combination, kChunk, "4096");
          set_level(combination, kPrefetch, "32");
          set_level(combination, kAccumulation, "1");
          set_level(combination, kClipping, runs % 4 == 0 ? "0.5" : "0");
          if (level_of(combination, kPrecision) == "fp16") set_level(combination, kPrecision, "fp32");
          expect_holds(law, combination);
        }
      }
    }
  }
}

TEST(PlacementLaw, HoldsWhileStepsAreRecorded) {
  constexpr uint64_t kRuns = 60;
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  law.record_steps();
  for (uint64_t r = 0; r < kRuns; ++r) {
    const Combination combination = product_element(r * (full_product_size() / kRuns) + 3 * r);
    expect_holds(law, combination);
  }
}

TEST(PlacementLaw, HoldsWhileStepsOfRanksThatPullAreRecorded) {
  constexpr uint64_t kRuns = 24;
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  law.record_steps();
  for (uint64_t r = 0; r < kRuns; ++r) {
    Combination combination = product_element(r * (full_product_size() / kRuns) + 5 * r);
    set_level(combination, kBackEnd, "pulled");
    set_level(combination, kRanks, r % 2 == 0 ? "2" : "3");
    set_level(combination, kHosts, "1");
    expect_holds(law, combination);
  }
}

// With accumulators on the device no gradient slot comes free during the update, and all fresh parameters
// leave through the one slot that the plan keeps for them.
TEST(PlacementLaw, HoldsWhereTheUpdateHasOneSlotForAllParameters) {
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  for (const uint8_t parameters : {1, 2}) {
    Combination combination{};
    combination[kParameters] = parameters;
    set_level(combination, kAccumulation, "3");
    expect_holds(law, combination);
  }
}

// The comparison itself: another rate, clipping or precision is another outcome.
TEST(PlacementLaw, TellsDifferentTrainingsApart) {
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  Combination base{};
  for (const FactorIndex factor : {kPrecision, kAccumulation, kClipping, kModel, kOptimizer, kMoments}) {
    for (uint8_t level = 1; level < factors()[factor].levels.size(); ++level) {
      Combination other = base;
      other[factor] = level;
      EXPECT_NE(difference(law.reference(base), law.train(other)), "") << describe(other);
    }
  }
  for (const std::string_view precision : {"bf16", "fp16"}) {  // fp32 accumulates in fp32 either way
    Combination accumulating = base;
    set_level(accumulating, kAccumulation, "3");
    set_level(accumulating, kPrecision, precision);
    Combination other = accumulating;
    set_level(other, kAccumulationType, "own");
    EXPECT_NE(difference(law.reference(accumulating), law.train(other)), "") << describe(other);
  }
}

// Else the factor would be idle: fp16 runs must have steps that overflow, and steps that do not.
TEST(PlacementLaw, ItsFp16RunsSkipOneStepOfThree) {
  const ScratchFolder folder;
  PlacementLaw law(folder.path());
  for (const std::string_view accumulation : {"1", "3"}) {
    Combination fp16{};
    set_level(fp16, kPrecision, "fp16");
    set_level(fp16, kAccumulation, accumulation);
    const std::vector<uint64_t>& norms = law.reference(fp16).gradient_norms;
    ASSERT_EQ(norms.size(), 3u);
    EXPECT_NE(norms[0], 0u);
    EXPECT_EQ(norms[1], 0u);
    EXPECT_NE(norms[2], 0u);
  }
}

}  // namespace
}  // namespace terrace::laws::placement_law_test
