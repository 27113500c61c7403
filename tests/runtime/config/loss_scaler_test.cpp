#include <terrace/runtime/config/loss_scaler.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <terrace/base/error.h>

namespace terrace::loss_scaler_test {
namespace {

// One step: what happened in it, and the scale with which the next one runs. 'x' overflows, '.' does not.
struct Row {
  char outcome;
  double next_scale;
};

void expect_table(const Fp16Config& options, const std::vector<Row>& rows) {
  LossScaler scaler(options);
  for (size_t i = 0; i < rows.size(); ++i) {
    scaler.update(rows[i].outcome == 'x');
    ASSERT_EQ(scaler.scale(), rows[i].next_scale) << "after step " << i;
  }
}

// The tables were made by hand from the source of DeepSpeed's DynamicLossScaler.update_scale: there a good
// step of iteration i doubles when s = i - last_overflow_iteration - 1 is a positive multiple of the window.

TEST(LossScaler, DoublesWithTheGoodStepAfterEachWindow) {
  // i - (-1) - 1 = i: doubles at i = 3 and i = 6.
  expect_table({.initial_scale_power = 4, .loss_scale_window = 3},
               {{'.', 16}, {'.', 16}, {'.', 16}, {'.', 32}, {'.', 32}, {'.', 32}, {'.', 64}, {'.', 64}});
}

TEST(LossScaler, HalvesOnceItsHysteresisIsSpentAndRefillsItWithADoubling) {
  // Overflows at i = 1 and 2 (hysteresis 2, 1), then s = i - 3: doubles at i = 5 (s = 2) and refills; the
  // overflow at i = 6 only spends hysteresis, the one at i = 7 halves.
  expect_table({.initial_scale_power = 10, .loss_scale_window = 2, .hysteresis = 2}, {{'.', 1024},
                                                                                      {'x', 1024},
                                                                                      {'x', 512},
                                                                                      {'.', 512},
                                                                                      {'.', 512},
                                                                                      {'.', 1024},
                                                                                      {'x', 1024},
                                                                                      {'x', 512},
                                                                                      {'x', 256}});
}

TEST(LossScaler, KeepsItsHysteresisSpentUntilADoubling) {
  expect_table({.initial_scale_power = 10, .loss_scale_window = 100, .hysteresis = 2},
               {{'x', 1024}, {'.', 1024}, {'x', 512}, {'.', 512}, {'x', 256}});
}

TEST(LossScaler, RefillsConsecutiveHysteresisWithEveryGoodStep) {
  expect_table(
      {.initial_scale_power = 10, .loss_scale_window = 100, .hysteresis = 2, .consecutive_hysteresis = true},
      {{'x', 1024}, {'.', 1024}, {'x', 1024}, {'.', 1024}, {'x', 1024}, {'x', 512}, {'x', 256}});
}

TEST(LossScaler, WithoutHysteresisHalvesAtOnce) {
  expect_table({.initial_scale_power = 3, .hysteresis = 1}, {{'x', 4}, {'x', 2}, {'x', 1}});
}

TEST(LossScaler, StopsWhenAStaticScaleOverflowsTenTimesInARow) {
  LossScaler scaler({.loss_scale = 1024});
  for (int i = 0; i < 9; ++i) scaler.update(true);
  scaler.update(false);
  for (int i = 0; i < 9; ++i) scaler.update(true);
  const auto before = scaler.state();
  try {
    scaler.update(true);
    FAIL() << "went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled);
    EXPECT_NE(std::string(error.what()).find("fp16.loss_scale"), std::string::npos) << error.what();
  }
  EXPECT_EQ(scaler.state(), before);
}

TEST(LossScaler, StopsAtTheSmallestScaleWithAnError) {
  LossScaler scaler({.initial_scale_power = 2, .hysteresis = 1, .min_loss_scale = 3});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 3);  // not 2
  const auto before = scaler.state();
  try {
    scaler.update(true);
    FAIL() << "went below the minimum";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled);
    EXPECT_NE(std::string(error.what()).find("fp16.min_loss_scale"), std::string::npos) << error.what();
  }
  EXPECT_EQ(scaler.state(), before);
}

TEST(LossScaler, KeepsAStaticScaleWhateverHappens) {
  LossScaler scaler({.loss_scale = 128, .loss_scale_window = 1, .min_loss_scale = 128});
  for (const bool overflow : {true, true, true, false, false, false}) scaler.update(overflow);
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_EQ(scaler.skipped_steps(), 3u);
}

TEST(LossScaler, NeverGrowsBeyondFp32) {
  LossScaler scaler({.initial_scale_power = 126, .loss_scale_window = 1});
  for (int i = 0; i < 5; ++i) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p127);
  EXPECT_THROW(LossScaler({.initial_scale_power = 128}), Error);
  EXPECT_THROW(LossScaler({.loss_scale = 1e39}), Error);
}

TEST(LossScaler, GoesOnFromItsStateAsIfNothingHadHappened) {
  const Fp16Config options{.initial_scale_power = 20, .loss_scale_window = 4, .hysteresis = 3};
  std::mt19937 random(5);
  LossScaler whole(options);
  LossScaler parts(options);
  for (int step = 0; step < 300; ++step) {
    const bool overflow = random() % 7 == 0;
    whole.update(overflow);
    parts.update(overflow);
    LossScaler next(options);
    next.restore(parts.state(), "here");
    parts = next;
    ASSERT_EQ(parts.state(), whole.state()) << "step " << step;
  }
  EXPECT_GT(whole.skipped_steps(), 20u);
}

TEST(LossScaler, RefusesAStateThatMeansNothing) {
  LossScaler scaler({});
  const auto good = scaler.state();
  for (const auto& [name, value] : good) {
    auto state = good;
    state.erase(name);
    EXPECT_THROW(scaler.restore(state, "here"), Error) << name;
  }
  for (const double scale : {0.0, -1.0, 1e300, std::nan("")}) {
    auto state = good;
    state["scale_bits"] = std::bit_cast<uint64_t>(scale);
    EXPECT_THROW(scaler.restore(state, "here"), Error) << scale;
  }
  auto state = good;
  state["hysteresis"] = 0;
  EXPECT_THROW(scaler.restore(state, "here"), Error);
  EXPECT_EQ(scaler.state(), good);
}

}  // namespace
}  // namespace terrace::loss_scaler_test
