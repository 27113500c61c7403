// What is offered to a run that does not fit does fit.
#include <terrace/reference/planning/ways_out.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/reference/setup/training_setup.h>

#include "reference/trainer_rig.h"
#include "support/sanitized.h"

namespace terrace::ways_out_test {
namespace {

using namespace trainer_tests;
using ::testing::Each, ::testing::ElementsAre, ::testing::HasSubstr, ::testing::StartsWith;

constexpr uint64_t kMachineBytes = 64 * kGiB;
constexpr uint64_t kBoundless = uint64_t{1} << 50;

std::string text_of(const std::vector<ChangedOption>& changes) {
  std::string text;
  for (const ChangedOption& change : changes)
    text += std::string(names_of(change.option).cpp) + " " + change.value + ";";
  return text;
}

std::vector<TierShortage> lack_of(const TrainConfig& config, const ModelConfig& model, Workers& workers) {
  try {
    set_up_training(config, model, workers);
  } catch (const ShortageError& refusal) {
    return refusal.tiers();
  }
  return {};
}

std::vector<WayOut> ways_of(const TrainerOptions& options, uint64_t machine_bytes = kMachineBytes) {
  Workers workers(1);
  try {
    set_up_training(options.config, options.model, workers);
  } catch (const ShortageError& refusal) {
    return find_ways_out(refusal, options.config, options.model, workers, nullptr, machine_bytes);
  }
  ADD_FAILURE() << "it fits";
  return {};
}

std::vector<std::string> texts_of(const std::vector<WayOut>& ways) {
  std::vector<std::string> texts;
  for (const WayOut& way : ways) texts.push_back(text_of(way.changes));
  return texts;
}

void expect_fitting_ways(const std::vector<WayOut>& ways, const ModelConfig& model, Workers& workers) {
  ASSERT_FALSE(ways.empty());
  std::vector<std::string> texts = texts_of(ways);
  std::ranges::sort(texts);
  EXPECT_EQ(std::ranges::adjacent_find(texts), texts.end()) << *std::ranges::adjacent_find(texts);
  for (const WayOut& way : ways)
    EXPECT_TRUE(lack_of(way.config, model, workers).empty()) << text_of(way.changes);
}

// To the byte: no less of one tier is enough under any budget of those that are not named, and of the second
// beside what the first needs; what is named is.
void expect_least(const std::vector<TierShortage>& tiers, const TrainerOptions& options, Workers& workers) {
  TrainConfig config = options.config;
  const auto fits_with = [&](const TierShortage& tier, uint64_t bytes) {
    (tier.tier == "device" ? config.terrace.device_memory_bytes : config.terrace.host_memory_bytes) = bytes;
    return lack_of(config, options.model, workers).empty();
  };
  const bool both = tiers.size() == 2;
  if (both) {
    ASSERT_EQ(tiers[0].tier, "device");
    fits_with(tiers[1], kBoundless);
    EXPECT_FALSE(fits_with(tiers[0], tiers[0].needed_bytes - 1));
    fits_with(tiers[0], tiers[0].needed_bytes);
  }
  EXPECT_FALSE(fits_with(tiers.back(), tiers.back().needed_bytes - 1));
  EXPECT_TRUE(fits_with(tiers.back(), tiers.back().needed_bytes));
  EXPECT_EQ(tiers[0].budget_bytes, tiers[0].tier == "device" ? *options.config.terrace.device_memory_bytes
                                                             : *options.config.terrace.host_memory_bytes);
}

TEST(WaysOut, OfTooLittleDeviceMemoryAreThreeThatFit) {
  TrainerOptions options = options_of({});
  options.config.batch = {64, 1};
  options.model.width = 128;
  options.config.terrace.chunk_elements.reset();
  options.config.terrace.device_memory_bytes = 4 * kMiB;
  Workers workers(1);
  const std::vector<TierShortage> tiers = lack_of(options.config, options.model, workers);
  ASSERT_EQ(tiers.size(), 1u);
  EXPECT_EQ(tiers[0].tier, "device");
  EXPECT_EQ(tiers[0].missing_bytes(), tiers[0].needed_bytes - 4 * kMiB);
  expect_least(tiers, options, workers);
  const std::vector<WayOut> ways = ways_of(options);
  expect_fitting_ways(ways, options.model, workers);
  EXPECT_THAT(texts_of(ways),
              ElementsAre(StartsWith("OffloadOptions::device_budget_bytes "),
                          HasSubstr("OffloadOptions::parameters nvme;OffloadOptions::states nvme;"),
                          HasSubstr("BatchConfig::micro_batch_size 1;")));
}

// What leaves the device has no room in host memory either, and there is no more memory than there is.
TEST(WaysOut, OfTooLittleMemoryOfAnyKindLeadToNvme) {
  TrainerOptions options = options_of({});
  options.model.vocabulary = 4096;
  options.model.width = 128;
  options.config.terrace.chunk_elements.reset();
  options.config.terrace.device_memory_bytes = 6 * kMiB;
  options.config.terrace.host_memory_bytes = 4 * kMiB;
  Workers workers(1);
  const std::vector<WayOut> ways = ways_of(options, 10 * kMiB);
  expect_fitting_ways(ways, options.model, workers);
  EXPECT_THAT(texts_of(ways),
              Each(HasSubstr("OffloadOptions::parameters nvme;OffloadOptions::states nvme;")));
}

TEST(WaysOut, OfTooLittleHostMemoryFit) {
  RunOptions run;
  run.parameters = "cpu";
  run.precision = "true";
  TrainerOptions options = options_of(run);
  options.model.vocabulary = 4096;
  options.model.width = 128;
  options.config.terrace.device_memory_bytes = 64 * kMiB;
  options.config.terrace.host_memory_bytes = kMiB;
  Workers workers(1);
  const std::vector<TierShortage> tiers = lack_of(options.config, options.model, workers);
  ASSERT_EQ(tiers.size(), 1u);
  EXPECT_EQ(tiers[0].tier, "host");
  expect_least(tiers, options, workers);
  expect_fitting_ways(ways_of(options), options.model, workers);
}

// Of parameters on the device an update that does not wait for the end of backward needs every gradient held.
TEST(WaysOut, OfAFixedUpdateCountTheGradientsThatItNeedsHeld) {
  RunOptions run;
  run.nvme = ".";
  run.accumulation = "4";
  Workers workers(1);
  for (const char* update : {"during_backward", "next_forward"}) {
    run.update = update;
    TrainerOptions options = options_of(run);
    options.model.layers = 12;
    options.config.terrace.device_memory_bytes = kGiB;
    options.config.terrace.host_memory_bytes = kMiB;
    const std::vector<TierShortage> tiers = lack_of(options.config, options.model, workers);
    ASSERT_EQ(tiers.size(), 1u);
    expect_least(tiers, options, workers);
    expect_fitting_ways(ways_of(options), options.model, workers);
  }
}

// Another placement asks for memory too, and so it is offered only if it asks for less.
TEST(WaysOut, ChangeNothingInVain) {
  TrainerOptions options = options_of({});
  options.config.terrace.device_memory_bytes = 1;
  options.config.terrace.host_memory_bytes = kGiB;
  const std::vector<WayOut> ways = ways_of(options);
  ASSERT_FALSE(ways.empty());
  const uint64_t enough = *ways.front().config.terrace.device_memory_bytes;
  for (const WayOut& way : ways)
    EXPECT_TRUE(&way == &ways.front() || *way.config.terrace.device_memory_bytes < enough)
        << text_of(way.changes);
}

// What no budget makes possible is no matter of bytes.
TEST(WaysOut, OfAnUpdateThatCannotBeAreNone) {
  RunOptions run;
  run.nvme = ".";
  run.precision = run.compact = "true";
  run.update = "next_forward";
  TrainerOptions options = options_of(run);
  options.config.terrace.device_memory_bytes = options.config.terrace.host_memory_bytes = 1;
  Workers workers(1);
  try {
    set_up_training(options.config, options.model, workers);
    FAIL() << "compact state was updated in the next forward";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    for (const Option option : {Option::update_when, Option::masters, Option::parameters})
      EXPECT_TRUE(error.parts().advice.names(option)) << names_of(option).cpp;
  }
}

TEST(WaysOut, SayOneByteAsOne) {
  EXPECT_EQ(missing_text({"host", 1, 2}), "1 byte is missing");
  EXPECT_EQ(missing_text({"host", 1, 3}), "2 bytes are missing");
  EXPECT_EQ(missing_text({"host", 0, 4 * kKiB}), "4096 bytes (4.00 KiB) are missing");
}

// What comes to nvme says where, unless that was said.
TEST(WaysOut, NameTheFoldersThatTheOtherRoleHas) {
  RunOptions run;
  run.parameters = "cpu";
  TrainerOptions options = options_of(run);
  options.model.width = 128;
  options.config.terrace.host_memory_bytes = kMiB;
  PlacementConfig& placement = options.config.placement;
  const auto with_folders = [&](std::vector<fs::path> parameters, std::vector<fs::path> states) {
    placement.parameter_paths = std::move(parameters);
    placement.state_paths = std::move(states);
    for (const std::string& text : texts_of(ways_of(options)))
      if (const size_t at = text.find("OffloadOptions::states nvme;"); at != std::string::npos)
        return text.substr(at);
    return std::string();
  };
  EXPECT_EQ(with_folders({}, {}), "OffloadOptions::states nvme;TierPath::path DIR;");
  EXPECT_EQ(with_folders({"/", "."}, {}), "OffloadOptions::states nvme;TierPath::path /;TierPath::path .;");
  EXPECT_EQ(with_folders({}, {"."}), "OffloadOptions::states nvme;TierPath::path .;");
  EXPECT_EQ(with_folders({"/"}, {"."}), "OffloadOptions::states nvme;");
}

// Budgets that the machine has not got are no way.
TEST(WaysOut, NeverTakeMoreMemoryThanThereIs) {
  RunOptions run;
  run.parameters = "cpu";
  TrainerOptions options = options_of(run);
  options.model.width = 128;
  options.config.terrace.host_memory_bytes = kMiB;
  Workers workers(1);
  for (const uint64_t machine_bytes : {uint64_t{1}, 20 * kMiB, 40 * kMiB}) {
    for (const WayOut& way : ways_of(options, machine_bytes)) {
      const MemoryPlan plan = set_up_training(way.config, options.model, workers).plan.memory;
      const bool raised =
          way.config.terrace.host_memory_bytes != kMiB ||
          way.config.terrace.device_memory_bytes != options.config.terrace.device_memory_bytes;
      EXPECT_TRUE(!raised || plan.device_bytes + plan.host_bytes <= machine_bytes) << text_of(way.changes);
    }
  }
}

struct SweptRun {
  const char* parameters;
  bool nvme;
  const char* precision;
  const char* accumulation;
  const char* activations;
  const char* update = "after_backward";
};

// Whatever is short of whatever: the figures are the least, and ways fit.
TEST(WaysOut, FitUnderAnyTwoTinyBudgets) {
  constexpr SweptRun kRuns[] = {{"", false, "false", "1", "none"},
                                {"cpu", false, "false", "4", "auto"},
                                {"cpu", true, "true", "1", "cpu"},
                                {"nvme", true, "true", "4", "auto"},
                                {"nvme", true, "false", "1", "nvme"},
                                {"", true, "true", "1", "none"},
                                {"", true, "false", "4", "nvme", "during_backward"}};
  constexpr std::pair<uint64_t, uint64_t> kBudgets[] = {
      {1, 1}, {64 * kKiB, kGiB}, {kGiB, 64 * kKiB}, {700 * kKiB, 300 * kKiB}, {300 * kKiB, 200 * kKiB}};
  Workers workers(1);
  size_t both = 0, refused = 0;
  for (const SweptRun& swept : kRuns) {
    for (const bool tied : {true, false}) {
      if (testing::kSanitized && tied) continue;
      RunOptions run;
      const bool all_on_nvme = std::string_view(swept.parameters) == "nvme";
      run.parameters = all_on_nvme ? "cpu" : swept.parameters;
      if (swept.nvme) run.nvme = ".";
      run.precision = swept.precision;
      run.accumulation = swept.accumulation;
      run.activations = swept.activations;
      run.update = swept.update;
      TrainerOptions options = options_of(run);
      options.config.terrace.chunk_elements.reset();
      if (all_on_nvme) {
        options.config.placement.parameters = Placement::nvme;
        options.config.placement.parameter_paths = {"."};
      }
      options.model.tied_embeddings = tied;
      options.model.vocabulary = 900;
      options.model.layers = 6;
      for (const auto& [device, host] : kBudgets) {
        options.config.terrace.device_memory_bytes = device;
        options.config.terrace.host_memory_bytes = host;
        const std::vector<TierShortage> tiers = lack_of(options.config, options.model, workers);
        if (tiers.empty()) continue;
        SCOPED_TRACE(::testing::Message()
                     << "parameters " << swept.parameters << ", activations " << swept.activations
                     << ", tied " << tied << ", device " << device << ", host " << host);
        ++refused;
        both += tiers.size() == 2;
        expect_least(tiers, options, workers);
        expect_fitting_ways(ways_of(options), options.model, workers);
      }
    }
  }
  EXPECT_GE(refused, testing::kSanitized ? 20u : 40u);
  EXPECT_GE(both, testing::kSanitized ? 5u : 10u);
}

}  // namespace
}  // namespace terrace::ways_out_test
