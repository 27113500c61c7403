#include <terrace/reference/micro_batches.h>

#include <gtest/gtest.h>

#include "reference/step_rig.h"

namespace terrace::micro_batches_test {
namespace {

using namespace trainer_tests;

constexpr auto kNothing = [] {};

RunOptions of_two(const std::string& order) {
  RunOptions run;
  run.accumulation = "2";
  run.order = order;
  return run;
}

// Of single micro-batches with these samples, each in a step that is given up.
std::vector<double> losses_of_samples(uint64_t first, uint64_t count) {
  StepRig rig({});
  MicroBatches single = rig.micro_batches();
  std::vector<double> losses;
  for (uint64_t sample = first; sample < first + count; ++sample) {
    rig.offloader.begin_step();
    losses.push_back(single.run(sample, 1, kNothing).loss);
    rig.offloader.abandon_step();
  }
  return losses;
}

TEST(MicroBatches, AreThoseOfTheSamplesThatFollowInEitherOrder) {
  const std::vector<double> expected = losses_of_samples(3, 2);
  ASSERT_NE(expected[0], expected[1]);
  for (const char* order : {"batch", "layer"}) {
    SCOPED_TRACE(order);
    StepRig rig(of_two(order));
    MicroBatches micro_batches = rig.micro_batches();
    rig.offloader.begin_step();
    const MicroBatches::Result result = micro_batches.run(3, 1, kNothing);
    EXPECT_EQ(result.loss, (expected[0] + expected[1]) / 2);
    EXPECT_EQ(result.samples, 2u);
    EXPECT_EQ(result.tokens, 2 * kContext);
    rig.offloader.abandon_step();
  }
}

TEST(MicroBatches, SayBeforeTheLastOneThatItComes) {
  const auto uses_before_last = [](const std::string& order) {
    StepRig rig(of_two(order));
    MicroBatches micro_batches = rig.micro_batches();
    std::vector<size_t> uses;
    rig.offloader.begin_step();
    micro_batches.run(0, 1, [&] { uses.push_back(micro_batches.use_ns().size()); });
    uses.push_back(micro_batches.use_ns().size());
    rig.offloader.abandon_step();
    return uses;
  };
  const std::vector<size_t> in_turn = uses_before_last("batch");
  ASSERT_EQ(in_turn.size(), 2u);
  EXPECT_GT(in_turn[0], 0u);
  EXPECT_EQ(in_turn[1], 2 * in_turn[0]);
  const std::vector<size_t> together = uses_before_last("layer");
  ASSERT_EQ(together.size(), 2u);
  EXPECT_EQ(together[0], 0u);
}

TEST(MicroBatches, MakeGradientsOfTheScaledMean) {
  const auto norm = [](const RunOptions& run, float loss_scale, uint64_t repeated) {
    StepRig rig(run);
    MicroBatches micro_batches = rig.micro_batches();
    GroupSettings groups(rig.options.config, 1);
    rig.offloader.begin_step();
    EXPECT_GT(micro_batches.run(repeated, loss_scale, kNothing).loss, 0);
    return rig.offloader.update({groups.at(0), 1, 0, loss_scale}).gradient_norm;
  };
  const double plain = norm(of_two("batch"), 1, 0);
  EXPECT_GT(plain, 0);
  EXPECT_EQ(norm(of_two("batch"), 4, 0), plain);
  EXPECT_EQ(norm(of_two("layer"), 4, 0), plain);
}

TEST(MicroBatches, EvaluateWindowsOfTheValidationPartAndKeepTheWeights) {
  RunOptions run = of_two("layer");
  run.validation_fraction = 0.3;
  StepRig rig(run);
  MicroBatches micro_batches = rig.micro_batches();
  const std::vector<std::byte> before = rig.state_bytes();
  rig.offloader.begin_evaluation();
  const double first = micro_batches.evaluate(0, 3);
  const double last = micro_batches.evaluate(2, 3);
  EXPECT_NE(first, last);
  EXPECT_EQ(micro_batches.evaluate(0, 3), first);
  rig.offloader.end_evaluation();
  EXPECT_EQ(rig.state_bytes(), before);
}

// The windows of a batch of two are those of two batches of one.
TEST(MicroBatches, EvaluateEveryWindowOnceHoweverManyABatchHas) {
  const auto loss = [](const char* size, uint64_t run, uint64_t runs) {
    RunOptions options;
    options.validation_fraction = 0.3;
    options.more = {{"train_micro_batch_size_per_gpu", size, "a test"}};
    StepRig rig(options);
    MicroBatches micro_batches = rig.micro_batches();
    rig.offloader.begin_evaluation();
    const double mean = micro_batches.evaluate(run, runs);
    rig.offloader.end_evaluation();
    return mean;
  };
  for (const uint64_t run : {0, 1})
    EXPECT_NEAR(loss("2", run, 2), (loss("1", 2 * run, 4) + loss("1", 2 * run + 1, 4)) / 2, 1e-6);
}

}  // namespace
}  // namespace terrace::micro_batches_test
