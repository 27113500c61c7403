#include <terrace/runtime/config/run_settings.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/base/error.h>

namespace terrace::run_settings_test {
namespace {

std::map<std::string, std::string> settings(const std::vector<ConfigOverride>& overrides,
                                            uint64_t steps = 10) {
  return settings_of(default_train_config(overrides), steps);
}

TEST(RunSettings, HoldWhatShapesTheNumbersAndNothingOfPlacement) {
  const auto all = settings({});
  EXPECT_EQ(all.at("optimizer.params.lr"), "0.001");
  EXPECT_EQ(all.at("train_batch_size"), "1");
  EXPECT_EQ(all.at("steps"), "10");
  for (const auto& [key, value] : all) {
    EXPECT_FALSE(key.starts_with("zero_optimization") || key.starts_with("aio")) << key;
    EXPECT_NE(key, "terrace.device_memory");
  }
}

TEST(RunSettings, NameWhatDiffersWithBothValues) {
  const auto saved = settings({{"optimizer.params.lr", "0.001", "--lr"}});
  EXPECT_THAT(changed_settings(saved, saved), ::testing::IsEmpty());
  const auto now = settings(
      {{"optimizer.params.lr", "0.0005", "--lr"}, {"gradient_accumulation_steps", "4", "--accumulation"}});
  EXPECT_THAT(
      changed_settings(saved, now),
      ::testing::ElementsAre("optimizer.params.lr differs from the checkpoint's run: 0.0005 now, 0.001 there",
                             "train_batch_size differs from the checkpoint's run: 4 now, 1 there"));
}

TEST(RunSettings, SayWhatIsRounded) {
  const auto exact = settings({});
  const auto rounded = settings({{"bf16.enabled", "true", "a test"},
                                 {"zero_optimization.zero_quantized_weights", "true", "a test"},
                                 {"zero_optimization.zero_quantized_gradients", "true", "a test"},
                                 {"terrace.quantized_gradient_bits", "4", "a test"}});
  const std::vector<std::string> lines = changed_settings(exact, rounded);
  EXPECT_THAT(lines, ::testing::Contains("zero_optimization.zero_quantized_gradients differs from the "
                                         "checkpoint's run: 4 bits now, not set there"));
  EXPECT_THAT(lines, ::testing::Contains("zero_optimization.zero_quantized_weights differs from the "
                                         "checkpoint's run: 8 bits now, not set there"));
}

TEST(RunSettings, DoNotDependOnTheNumberOfRanks) {
  const auto of_ranks = [](const char* ranks) {
    return settings({{"train_batch_size", "8", "a test"},
                     {"train_micro_batch_size_per_gpu", "2", "a test"},
                     {"terrace.ranks", ranks, "a test"}});
  };
  EXPECT_THAT(changed_settings(of_ranks("3"), of_ranks("1")), ::testing::IsEmpty());
}

TEST(RunSettings, OfCheckpointsBeforeThereWereRanksHaveTheAccumulation) {
  const auto now = settings(
      {{"train_micro_batch_size_per_gpu", "2", "a test"}, {"gradient_accumulation_steps", "4", "a test"}});
  auto saved = now;
  saved.erase("train_batch_size");
  saved["gradient_accumulation_steps"] = "4";
  EXPECT_THAT(changed_settings(saved, now), ::testing::IsEmpty());
  saved["gradient_accumulation_steps"] = "3";
  EXPECT_THAT(changed_settings(saved, now),
              ::testing::ElementsAre("train_batch_size differs from the checkpoint's run: 8 now, 6 there"));
}

// By whatever keys: auto is fp32 on the processor and the parameters' type on a GPU, as parameter_type is on
// both. Checkpoints from before there was the key say nothing.
TEST(RunSettings, HaveTheTypeInWhichMatricesAreMultiplied) {
  const auto of = [](const char* key, const char* value) {
    return settings({{"bf16.enabled", "true", "a test"}, {key, value, "a test"}});
  };
  auto saved = of("terrace.compute", "auto");
  EXPECT_THAT(changed_settings(saved, of("terrace.compute", "fp32")), ::testing::IsEmpty());
  EXPECT_THAT(changed_settings(saved, of("terrace.gpu_compute", "fp32")), ::testing::IsEmpty());
  EXPECT_THAT(changed_settings(of("terrace.compute", "bf16"), of("terrace.compute", "parameter_type")),
              ::testing::IsEmpty());
  EXPECT_THAT(changed_settings(of("terrace.compute", "bf16"), of("terrace.device", "cuda")),
              ::testing::IsEmpty());
  EXPECT_THAT(changed_settings(settings({}), settings({{"terrace.device", "auto", "a test"}})),
              ::testing::IsEmpty());
  EXPECT_THAT(
      changed_settings(saved, of("terrace.device", "cuda")),
      ::testing::ElementsAre("terrace.compute differs from the checkpoint's run: bf16 now, fp32 there"));
  saved.erase("terrace.compute");
  EXPECT_THAT(changed_settings(saved, of("terrace.compute", "auto")), ::testing::IsEmpty());
  EXPECT_THAT(changed_settings(saved, of("terrace.device", "auto")), ::testing::IsEmpty());
  EXPECT_THAT(
      changed_settings(saved, of("terrace.compute", "bf16")),
      ::testing::ElementsAre("terrace.compute differs from the checkpoint's run: bf16 now, not set there"));
}

TEST(RunSettings, KeysOfOneSideOnlyDifferToo) {
  EXPECT_THAT(changed_settings({{"a", "1"}}, {{"b", "2"}}),
              ::testing::ElementsAre("a differs from the checkpoint's run: not set now, 1 there",
                                     "b differs from the checkpoint's run: 2 now, not set there"));
  EXPECT_THAT(changed_settings({}, {{"b", "2"}}), ::testing::IsEmpty()) << "a checkpoint that says nothing";
}

TEST(RunSettings, KeepTheGradientGroupsOfTheRunThatIsGoneOnFrom) {
  const auto saved = settings({{"terrace.gradient_group", "4", "a test"}});
  EXPECT_EQ(gradient_group_of(saved), 4u);
  EXPECT_EQ(gradient_group_of(settings({})), 1u);
  BatchConfig batch;
  keep_gradient_group(saved, "step 2", batch);
  EXPECT_EQ(batch.gradient_group, 4u);
  keep_gradient_group(saved, "step 2", batch);
  BatchConfig other;
  other.gradient_group = 2;
  try {
    keep_gradient_group(saved, "step 2", other);
    FAIL() << "sums of another order";
  } catch (const Error& failure) {
    EXPECT_EQ(failure.kind(), ErrorKind::config);
    EXPECT_THAT(failure.what(), ::testing::HasSubstr("terrace.gradient_group is 2, and the run there has 4"));
  }
  EXPECT_THROW(keep_gradient_group({}, "step 2", other), Error);
}

}  // namespace
}  // namespace terrace::run_settings_test
