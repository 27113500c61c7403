#include <terrace/runtime/config/run_settings.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace::run_settings_test {
namespace {

std::map<std::string, std::string> settings(const std::vector<ConfigOverride>& overrides,
                                            uint64_t steps = 10) {
  return settings_of(default_train_config(overrides), steps);
}

TEST(RunSettings, HoldWhatShapesTheNumbersAndNothingOfPlacement) {
  const auto all = settings({});
  EXPECT_EQ(all.at("optimizer.params.lr"), "0.001");
  EXPECT_EQ(all.at("gradient_accumulation_steps"), "1");
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
  EXPECT_THAT(changed_settings(saved, now),
              ::testing::ElementsAre(
                  "gradient_accumulation_steps differs from the checkpoint's run: 4 now, 1 there",
                  "optimizer.params.lr differs from the checkpoint's run: 0.0005 now, 0.001 there"));
}

TEST(RunSettings, KeysOfOneSideOnlyDifferToo) {
  EXPECT_THAT(changed_settings({{"a", "1"}}, {{"b", "2"}}),
              ::testing::ElementsAre("a differs from the checkpoint's run: not set now, 1 there",
                                     "b differs from the checkpoint's run: 2 now, not set there"));
  EXPECT_THAT(changed_settings({}, {{"b", "2"}}), ::testing::IsEmpty()) << "a checkpoint that says nothing";
}

}  // namespace
}  // namespace terrace::run_settings_test
