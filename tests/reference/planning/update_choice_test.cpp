#include <terrace/reference/planning/update_choice.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace::update_choice_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// An update that waits for the disk most of the time, between passes of one second.
UpdateTimes balanced() {
  UpdateTimes times;
  times.forward = 1;
  times.backward = 2;
  times.update = 1.2;
  times.disk_wait = 1;
  times.update_bytes = 1.2e9;
  return times;
}

TEST(PredictUpdate, HidesTheDiskBehindTheForwardWhereGradientsAreClipped) {
  const UpdatePrediction prediction = predict_update(balanced(), {.clips = true});
  EXPECT_DOUBLE_EQ(prediction.after_backward, 4.2);
  EXPECT_DOUBLE_EQ(prediction.next_forward, 3.2);
  EXPECT_DOUBLE_EQ(prediction.during_backward, 4.2);
  EXPECT_EQ(prediction.fastest, UpdateMode::next_forward);
}

TEST(PredictUpdate, PrefersTheNextForwardWhereBackwardHidesNoMore) {
  EXPECT_EQ(predict_update(balanced(), {}).fastest, UpdateMode::next_forward);
}

TEST(PredictUpdate, TakesBackwardWhereForwardIsTooShort) {
  UpdateTimes times = balanced();
  times.forward = 0.3;
  const UpdatePrediction prediction = predict_update(times, {});
  EXPECT_DOUBLE_EQ(prediction.next_forward, 3.2);
  EXPECT_DOUBLE_EQ(prediction.during_backward, 2.5);
  EXPECT_EQ(prediction.fastest, UpdateMode::during_backward);
  EXPECT_EQ(predict_update(times, {.scales_loss = true}).fastest, UpdateMode::next_forward);
}

TEST(PredictUpdate, StaysAfterBackwardWhereTheDiskIsNotWaitedFor) {
  UpdateTimes times = balanced();
  times.disk_wait = 0.05;
  EXPECT_EQ(predict_update(times, {}).fastest, UpdateMode::after_backward);
}

// Beside a device that computes by itself the arithmetic of an update is hidden as well.
TEST(PredictUpdate, HidesTheWholeUpdateBehindADeviceThatComputes) {
  UpdateTimes times = balanced();
  times.disk_wait = 0;
  const UpdatePrediction prediction = predict_update(times, {.device_computes = true});
  EXPECT_DOUBLE_EQ(prediction.next_forward, 4.2 - 1);
  EXPECT_DOUBLE_EQ(prediction.during_backward, 4.2 - 1.2);
  EXPECT_EQ(prediction.fastest, UpdateMode::during_backward);
  const UpdatePrediction clipped = predict_update(times, {.clips = true, .device_computes = true});
  EXPECT_DOUBLE_EQ(clipped.during_backward, 4.2);
  EXPECT_EQ(clipped.fastest, UpdateMode::next_forward);
}

// Only the first forward and the last backward of a step lie beside an update.
TEST(PredictUpdate, CountsOnePassOfSeveralMicroBatches) {
  UpdateTimes times = balanced();
  times.forward = 4;
  times.backward = 8;
  EXPECT_DOUBLE_EQ(predict_update(times, {.accumulation_steps = 8}).next_forward, 13.2 - 0.5);
  EXPECT_DOUBLE_EQ(predict_update(times, {.accumulation_steps = 8}).during_backward, 13.2 - 1);
}

// The disk that takes spilled gradients during backward has that much less time for an update beside it.
TEST(PredictUpdate, LeavesSpilledGradientsTheirTimeInBackward) {
  UpdateTimes times = balanced();
  times.forward = 0.3;
  times.gradient_bytes = 1.5e9;  // 1.5 s of the disk
  EXPECT_DOUBLE_EQ(predict_update(times, {}).during_backward, 2.3 + 1.2 - 0.5);
  EXPECT_DOUBLE_EQ(predict_update(times, {}).next_forward, 3.2);
  times.gradient_bytes = 12e9;
  EXPECT_DOUBLE_EQ(predict_update(times, {}).during_backward, 3.5);
}

TEST(PredictUpdate, LeavesTheEmbeddingsAndTheParametersTheirTime) {
  const UpdatePrediction tied = predict_update(balanced(), {.embedding_part = 0.75});
  EXPECT_DOUBLE_EQ(tied.next_forward, 4.2 - 0.25);
  EXPECT_DOUBLE_EQ(tied.during_backward, 4.2 - 0.25);
  UpdateTimes times = balanced();
  times.parameter_bytes = 1.6e9;  // 0.8 s of the disk in each pass
  EXPECT_DOUBLE_EQ(predict_update(times, {}).next_forward, 4.2 - 0.2);
}

TEST(PredictUpdate, ReadsAheadNoMoreThanThereIsRoomFor) {
  EXPECT_DOUBLE_EQ(
      predict_update(balanced(), {.clips = true, .read_ahead_bytes = 100'000'000}).during_backward,
      4.2 - 0.1);
}

TEST(UpdateChoice, DecidesOnceFromTheStepsAfterTheFirst) {
  UpdateChoice choice({.clips = true});
  UpdateTimes first = balanced();
  first.disk_wait = 0;
  EXPECT_FALSE(choice.add(1, first));
  EXPECT_FALSE(choice.add(2, balanced()));
  EXPECT_FALSE(choice.add(3, balanced()));
  const auto decision = choice.add(4, balanced());
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->mode, UpdateMode::next_forward);
  EXPECT_THAT(decision->reason, AllOf(HasSubstr("next_forward from step 5 on"),
                                      HasSubstr("after_backward 4.200"), HasSubstr("next_forward 3.200"),
                                      HasSubstr("during_backward"), HasSubstr("gradients are clipped")));
  EXPECT_FALSE(choice.is_done());
  UpdateTimes faster = balanced();
  faster.update = 0.2;
  for (uint64_t step = 5; step <= 8; ++step) EXPECT_FALSE(choice.add(step, faster));
  EXPECT_TRUE(choice.is_done());
  EXPECT_FALSE(choice.add(9, balanced()));
}

TEST(UpdateChoice, GoesBackWhereTheOtherModeIsSlower) {
  UpdateChoice choice({});
  for (uint64_t step = 1; step <= 4; ++step) choice.add(step, balanced());
  UpdateTimes slower = balanced();
  slower.forward = 2.2;
  std::optional<UpdateChoice::Decision> decision;
  for (uint64_t step = 5; step <= 8; ++step) decision = choice.add(step, slower);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->mode, UpdateMode::after_backward);
  EXPECT_THAT(decision->reason,
              HasSubstr("after_backward again from step 9 on: a step took 5.400 s in next_forward, 4.200 s"));
  EXPECT_TRUE(choice.is_done());
}

TEST(UpdateChoice, SaysThatItStaysAfterBackward) {
  UpdateChoice choice({});
  UpdateTimes times = balanced();
  times.disk_wait = 0;
  std::optional<UpdateChoice::Decision> decision;
  for (uint64_t step = 1; step <= 4; ++step) decision = choice.add(step, times);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->mode, UpdateMode::after_backward);
  EXPECT_TRUE(choice.is_done());
}

// One disturbed step among three decides nothing.
TEST(UpdateChoice, TakesTheMedianOfEachFigure) {
  UpdateChoice choice({});
  UpdateTimes disturbed = balanced();
  disturbed.update = disturbed.disk_wait = 30;
  UpdateTimes quiet = balanced();
  quiet.disk_wait = 0;
  choice.add(1, quiet);
  choice.add(2, quiet);
  choice.add(3, disturbed);
  EXPECT_EQ(choice.add(4, quiet)->mode, UpdateMode::after_backward);
}

}  // namespace
}  // namespace terrace::update_choice_test
