#include <terrace/reference/run_position.h>

#include <gtest/gtest.h>

#include <terrace/base/error.h>

#include "support/expect_error.h"

namespace terrace::run_position_test {
namespace {

using testing::expect_error;

CheckpointInfo identity(DataType type = DataType::bf16) {
  CheckpointInfo info;
  info.model = "toy";
  info.type = type;
  info.position = {{"context", 8}};
  info.settings = {{"optimizer.params.lr", "0.1"}};
  return info;
}

TEST(RunPosition, CountsStepsAndTheirSamples) {
  RunPosition state(identity(), 4096, {});
  for (int step = 0; step < 3; ++step) {
    state.begin_step();
    state.count_step(5, false);
  }
  EXPECT_EQ(state.completed_steps(), 3u);
  EXPECT_EQ(state.applied_updates(), 3u);
  EXPECT_EQ(state.consumed_samples(), 15u);
  EXPECT_EQ(state.loss_scale(), 1.0f);
  const CheckpointInfo info = state.info();
  EXPECT_EQ(info.chunk_elements, 4096u);
  EXPECT_EQ(info.step, 3u);
  EXPECT_EQ(info.position, (std::map<std::string, uint64_t>{{"consumed_samples", 15}, {"context", 8}}));
  EXPECT_TRUE(info.loss_scaler.empty());
}

TEST(RunPosition, HasAnIdOfItsOwn) {
  const RunPosition one(identity(), 4096, {}), other(identity(), 4096, {});
  EXPECT_NE(one.identity().run_id, 0u);
  EXPECT_NE(one.identity().run_id, other.identity().run_id);
  EXPECT_EQ(one.info().run_id, one.identity().run_id);
}

TEST(RunPosition, IsOfNoStepWhileAStepIsUnderWay) {
  RunPosition state(identity(), 4096, {});
  state.begin_step();
  EXPECT_FALSE(state.counts_are_of_weights());
  expect_error(ErrorKind::cancelled, {"the weights are of no step"}, [&] { state.info(); });
  state.note_unchanged();
  EXPECT_TRUE(state.counts_are_of_weights());
  EXPECT_EQ(state.info().step, 0u);
}

TEST(RunPosition, CountsASkippedStepAndNoUpdate) {
  RunPosition state(identity(DataType::fp16), 4096, {.initial_scale_power = 4, .hysteresis = 1});
  EXPECT_TRUE(state.scales_loss());
  EXPECT_EQ(state.loss_scale(), 16.0f);
  state.begin_step();
  state.count_step(5, true);
  state.begin_step();
  state.count_step(5, false);
  EXPECT_EQ(state.loss_scale(), 8.0f);
  EXPECT_EQ(state.completed_steps(), 2u);
  EXPECT_EQ(state.applied_updates(), 1u);
  EXPECT_EQ(state.consumed_samples(), 10u);
}

TEST(RunPosition, StaysWholeWhereTheLossScaleCannotBeLowered) {
  RunPosition state(identity(DataType::fp16), 4096, {.initial_scale_power = 0, .hysteresis = 1});
  state.begin_step();
  expect_error(ErrorKind::cancelled, {}, [&] { state.count_step(5, true); });
  EXPECT_TRUE(state.counts_are_of_weights());
  EXPECT_EQ(state.completed_steps(), 0u);
  EXPECT_EQ(state.consumed_samples(), 0u);
}

TEST(RunPosition, GoesOnFromWhatWasSavedAndSaysWhatIsOther) {
  const Fp16Config fp16{.initial_scale_power = 4, .hysteresis = 1};
  RunPosition first(identity(DataType::fp16), 4096, fp16);
  first.begin_step();
  first.count_step(7, true);
  CheckpointInfo other = identity(DataType::fp16);
  other.settings["optimizer.params.lr"] = "0.2";
  RunPosition second(other, 8192, fp16);
  MemoryLog log;
  second.go_on_from(first.info(), "there", log);
  EXPECT_EQ(second.identity().run_id, first.identity().run_id);
  EXPECT_EQ(second.completed_steps(), 1u);
  EXPECT_EQ(second.applied_updates(), 0u);
  EXPECT_EQ(second.consumed_samples(), 7u);
  EXPECT_EQ(second.loss_scale(), 8.0f);
  EXPECT_EQ(second.info().chunk_elements, 8192u);
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines().front().text.find("optimizer.params.lr"), std::string::npos);
}

TEST(RunPosition, KeepsItsIdWhereWhatWasSavedHasNone) {
  RunPosition state(identity(), 4096, {});
  const uint64_t own = state.identity().run_id;
  CheckpointInfo saved = state.info();
  saved.run_id = 0;
  MemoryLog log;
  state.go_on_from(saved, "there", log);
  EXPECT_EQ(state.identity().run_id, own);
}

}  // namespace
}  // namespace terrace::run_position_test
