// What is offered to a run that does not fit does fit.
#include <terrace/runtime/train/planning/ways_out.h>

#include <gtest/gtest.h>

#include <optional>
#include <string_view>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/runtime/train/planning/run_changes.h>
#include <terrace/runtime/train/setup/training_setup.h>

#include "runtime/train/trainer_rig.h"
#include "support/sanitized.h"

namespace terrace::ways_out_test {
namespace {

using namespace trainer_tests;

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

Shortage shortage_of(const TrainerOptions& options, uint64_t machine_bytes = kMachineBytes) {
  Workers workers(1);
  try {
    set_up_training(options.config, options.model, workers);
  } catch (const ShortageError& refusal) {
    return find_ways_out(refusal, options.config, options.model, workers, nullptr, {machine_bytes});
  }
  ADD_FAILURE() << "it fits";
  return {};
}

void expect_two_ways(const Shortage& shortage, Workers& workers) {
  ASSERT_EQ(shortage.ways.size(), 2u);
  EXPECT_NE(shortage.ways[0].changes, shortage.ways[1].changes);
  for (const WayOut& way : shortage.ways)
    EXPECT_TRUE(lack_of(way.config, way.model, workers).empty()) << text_of(way.changes);
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

TEST(WaysOut, OfTooLittleDeviceMemoryAreTwoThatFit) {
  TrainerOptions options = options_of({});
  options.config.batch = {8, 1};
  options.config.terrace.chunk_elements.reset();
  options.config.terrace.device_memory_bytes = kMiB;
  const Shortage shortage = shortage_of(options);
  Workers workers(1);
  ASSERT_EQ(shortage.tiers.size(), 1u);
  EXPECT_EQ(shortage.tiers[0].tier, "device");
  EXPECT_EQ(shortage.tiers[0].missing_bytes(), shortage.tiers[0].needed_bytes - kMiB);
  expect_least(shortage.tiers, options, workers);
  expect_two_ways(shortage, workers);
}

// What leaves the device has no room in host memory either.
TEST(WaysOut, OfTooLittleDeviceMemoryBesideLittleHostMemoryLeadToNvme) {
  TrainerOptions options = options_of({});
  options.model.vocabulary = 4096;
  options.model.width = 128;
  options.config.terrace.chunk_elements.reset();
  options.config.terrace.device_memory_bytes = 6 * kMiB;
  options.config.terrace.host_memory_bytes = 4 * kMiB;
  Workers workers(1);
  // No more memory than there is: of the ways none is a budget alone.
  const Shortage shortage = shortage_of(options, 10 * kMiB);
  EXPECT_EQ(shortage.tiers[0].tier, "device");
  ASSERT_FALSE(shortage.ways.empty());
  const std::string first = text_of(shortage.ways[0].changes);
  for (const WayOut& way : shortage.ways) {
    const bool is_first = &way == &shortage.ways[0];
    EXPECT_TRUE(is_first || text_of(way.changes).find(first) == std::string::npos) << "more than is needed";
    EXPECT_NE(text_of(way.changes).find("nvme"), std::string::npos) << text_of(way.changes);
    EXPECT_NO_THROW(set_up_training(way.config, way.model, workers)) << text_of(way.changes);
  }
}

TEST(WaysOut, OfTooLittleHostMemoryAreTwoThatFit) {
  RunOptions run;
  run.parameters = "cpu";
  run.precision = "true";
  TrainerOptions options = options_of(run);
  options.model.vocabulary = 4096;
  options.model.width = 128;
  options.config.terrace.device_memory_bytes = 64 * kMiB;
  options.config.terrace.host_memory_bytes = kMiB;
  const Shortage shortage = shortage_of(options);
  Workers workers(1);
  EXPECT_EQ(shortage.tiers[0].tier, "host");
  expect_least(shortage.tiers, options, workers);
  expect_two_ways(shortage, workers);
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
    const Shortage shortage = shortage_of(options);
    expect_two_ways(shortage, workers);
    bool other_mode = false;
    for (const WayOut& way : shortage.ways)
      other_mode |= text_of(way.changes) == "Offloader::set_update_mode after_backward;";
    EXPECT_TRUE(other_mode);
  }
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

// A budget that is enough alone is not offered with a guarantee given up beside it.
TEST(WaysOut, GiveNoGuaranteeUpForNothing) {
  RunOptions run;
  run.nvme = ".";
  run.parameters = "nvme";
  TrainerOptions options = options_of(run);
  options.model.vocabulary = 256;
  options.model.context = 64;
  options.config.precision = DataType::fp16;
  options.config.activations.checkpoint = false;
  options.config.terrace.chunk_elements.reset();
  options.config.terrace.device_memory_bytes = kMiB / 4;
  options.config.terrace.host_memory_bytes = kMiB / 2;
  const Shortage shortage = shortage_of(options);
  ASSERT_EQ(shortage.ways.size(), 2u);
  for (const WayOut& way : shortage.ways)
    EXPECT_EQ(text_of(way.changes).find("OffloadOptions::durable"), std::string::npos)
        << text_of(way.changes);
}

TEST(WaysOut, SayOneByteAsOne) {
  EXPECT_EQ(missing_text({"host", 1, 2}), "1 byte is missing");
  EXPECT_EQ(missing_text({"host", 1, 3}), "2 bytes are missing");
  EXPECT_EQ(missing_text({"host", 0, 4 * kKiB}), "4096 bytes (4.00 KiB) are missing");
}

// Each asked for as said, beside what was said before, it is the run that was planned.
TEST(WaysOut, AreConfigurationsThatCanBeGiven) {
  const auto config_of = [](std::vector<ConfigOverride> more) {
    RunOptions run;
    run.accumulation = "4";
    run.order = "layer";
    run.more = std::move(more);
    return options_of(run);
  };
  const auto change_of = [](const TrainerOptions& options, ChangeKind kind) -> std::optional<Change> {
    for (const Change& change : possible_changes(options.config, options.model))
      if (change.kind == kind) return change;
    return std::nullopt;
  };
  const ConfigOverride unchecked = {"terrace.checkpoint_activations", "false", "a test"};
  const TrainerOptions options = config_of({unchecked});
  EXPECT_TRUE(options.config.activations.checkpoint);
  EXPECT_FALSE(change_of(options, ChangeKind::activations));  // there would be nothing to move
  ChangeableRun changed{options.config, options.model};
  change_of(options, ChangeKind::order)->apply(changed);
  EXPECT_FALSE(changed.config.activations.checkpoint);
  const TrainerOptions kept = config_of({});
  changed = {kept.config, kept.model};
  change_of(kept, ChangeKind::order)->apply(changed);
  EXPECT_TRUE(changed.config.activations.checkpoint);
  // terrace.offload_activations was said, and what contradicts it cannot be said beside it.
  EXPECT_EQ(text_of(change_of(kept, ChangeKind::activations)->options), "ActivationConfig::offload cpu;");
}

// What comes to nvme says where, unless that was said.
TEST(WaysOut, NameTheFoldersThatTheOtherRoleHas) {
  TrainConfig config = options_of({}).config;
  config.placement.parameters = Placement::nvme;
  config.placement.parameter_paths = {"/one", "/other"};
  const auto states_on_nvme = [&config] {
    for (const Change& change : possible_changes(config, model_preset("gpt2")))
      if (change.options.front() == ChangedOption{Option::states, "nvme"}) return text_of(change.options);
    return std::string();
  };
  EXPECT_EQ(states_on_nvme(), "OffloadOptions::states nvme;TierPath::path /one;TierPath::path /other;");
  config.placement.state_paths = {"/third"};
  EXPECT_EQ(states_on_nvme(), "OffloadOptions::states nvme;");
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
    for (const WayOut& way : shortage_of(options, machine_bytes).ways) {
      const MemoryPlan plan = set_up_training(way.config, way.model, workers).plan.memory;
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

// Whatever is short of whatever: the figures are the least, and two ways fit.
TEST(WaysOut, AreTwoThatFitUnderAnyTwoTinyBudgets) {
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
        expect_two_ways(shortage_of(options), workers);
      }
    }
  }
  EXPECT_GE(refused, testing::kSanitized ? 20u : 40u);
  EXPECT_GE(both, testing::kSanitized ? 5u : 10u);
}

}  // namespace
}  // namespace terrace::ways_out_test
