// How long stages of a pipeline take, for cases that follow by hand.
#include <terrace/runtime/planning/pipeline_clock.h>

#include <gtest/gtest.h>

namespace terrace::pipeline_clock_test {
namespace {

StagePasses passes_of(uint32_t micro_batches, double forward, double backward, uint32_t host) {
  return {std::vector<double>(micro_batches, forward), std::vector<double>(micro_batches, backward), 0, host};
}

// Each stage on a host of its own.
PipelineQuestion alike(uint32_t stages, uint32_t micro_batches, double forward, double backward) {
  PipelineQuestion question;
  for (uint32_t s = 0; s < stages; ++s)
    question.stages.push_back(passes_of(micro_batches, forward, backward, s));
  return question;
}

// Nothing but messages takes time, and one takes a second.
PipelineQuestion of_messages(uint32_t stages, uint32_t micro_batches) {
  PipelineQuestion question = alike(stages, micro_batches, 0, 0);
  question.activation_bytes = 10;
  question.network.bytes = 10;
  return question;
}

PipelineTime time_of(const PipelineQuestion& question) {
  return PipelineClock(question).run();
}

TEST(PipelineClock, HasABubbleOfOneLessThanTheStages) {
  PipelineQuestion question = alike(4, 6, 1, 2);
  for (StagePasses& stage : question.stages) stage.update = 5;
  const PipelineTime time = time_of(question);
  EXPECT_DOUBLE_EQ(time.step_seconds, (6 + 3) * 3 + 5);
  for (const double idle : time.idle_seconds) EXPECT_DOUBLE_EQ(idle, 3 * 3);
  EXPECT_DOUBLE_EQ(bubble_part(4, 6), 3.0 / 9);
  EXPECT_EQ(time.line_seconds, 0);
  EXPECT_EQ(time_of(alike(1, 6, 1, 2)).step_seconds, 18);
}

TEST(PipelineClock, GoesNoFasterThanTheSlowestStage) {
  PipelineQuestion question = alike(2, 3, 1, 1);
  question.stages[1] = passes_of(3, 2, 2, 1);
  // The second stage works from 1 to 13, and the first goes backward once more.
  const PipelineTime time = time_of(question);
  EXPECT_DOUBLE_EQ(time.step_seconds, 14);
  EXPECT_DOUBLE_EQ(time.idle_seconds[0], 8);
  EXPECT_DOUBLE_EQ(time.idle_seconds[1], 2);
}

TEST(PipelineClock, SendsBothWaysAtOnce) {
  PipelineQuestion question = of_messages(2, 4);
  // An activation takes a second, and the gradient of the one before comes back meanwhile.
  const PipelineTime time = time_of(question);
  EXPECT_DOUBLE_EQ(time.step_seconds, 5);
  EXPECT_DOUBLE_EQ(time.line_seconds, 4);
  question.network.message_seconds = 1;
  EXPECT_DOUBLE_EQ(time_of(question).step_seconds, 10);
}

TEST(PipelineClock, HasTheStageInTheMiddleReceiveFromBothSides) {
  PipelineQuestion question = of_messages(3, 20);
  const PipelineTime time = time_of(question);
  EXPECT_DOUBLE_EQ(time.line_seconds, 40);
  EXPECT_GE(time.step_seconds, 40);
  EXPECT_LE(time.step_seconds, 44);
}

TEST(PipelineClock, TakesTheNetworkBetweenHostsAlone) {
  PipelineQuestion question = of_messages(4, 8);
  for (uint32_t s = 0; s < 4; ++s) question.stages[s].host = s / 2;
  question.host_link.bytes = 1000;
  EXPECT_DOUBLE_EQ(time_of(question).line_seconds, 8);
  question.network.bytes = 0;
  EXPECT_EQ(time_of(question).line_seconds, 0);
}

TEST(PipelineClock, WaitsForTheHeadOfAMessageItsAnswerAndItsBody) {
  PipelineQuestion question = alike(2, 1, 1, 1);
  question.network.delay = 1;
  EXPECT_DOUBLE_EQ(time_of(question).step_seconds, 4 * 1 + 2 * 3);
}

// Its gradient comes in every micro-batch, and its values once after the update.
TEST(PipelineClock, HasATiedTableGoToTheFirstStageAndBack) {
  PipelineQuestion question = alike(2, 3, 0, 0);
  question.tied_bytes = 10;
  question.network.bytes = 10;
  EXPECT_DOUBLE_EQ(time_of(question).step_seconds, 3 + 1);
}

TEST(PipelineClock, SaysTheSameEachTime) {
  PipelineQuestion question = alike(5, 7, 1.25, 2.5);
  question.activation_bytes = 3;
  question.network = {.message_seconds = 0.1, .bytes = 2, .delay = 0.3};
  const PipelineTime one = time_of(question), other = time_of(question);
  EXPECT_EQ(one.step_seconds, other.step_seconds);
  EXPECT_EQ(one.idle_seconds, other.idle_seconds);
}

}  // namespace
}  // namespace terrace::pipeline_clock_test
