#include <terrace/offload/landing/gradient_runs.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace terrace::gradient_runs_test {
namespace {

// Three tensors in one chunk, at 0, 128 and 192, and one that goes on into the next chunk.
FlatSpace make_space() {
  return FlatSpace({{.name = "a", .shape = {100}, .type = DataType::bf16},
                    {.name = "b", .shape = {64}, .type = DataType::bf16},
                    {.name = "c", .shape = {50}, .type = DataType::bf16},
                    {.name = "d", .shape = {5000}, .type = DataType::bf16}},
                   kTileElements);
}

constexpr TensorId kA{0}, kB{1}, kC{2}, kD{3};
constexpr ChunkId kFirst{0}, kSecond{1};

std::string text(const GradientLanding& landing) {
  std::string text;
  for (const GradientRun& run : landing.runs)
    text += std::to_string(run.first_element) + "+" + std::to_string(run.element_count) +
            (run.is_first ? " first " : " ");
  return text + (landing.begins ? "begins " : "") + (landing.ends ? "ends" : "");
}

TEST(GradientRuns, TakeWhatIsCompleteWithThePaddingBehindItAndMergeNeighbours) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, StepRounds{2});
  runs.begin_step();
  runs.complete(kC, 0);
  runs.complete(kA, 0);
  EXPECT_EQ(text(runs.take(kFirst, 0, true)), "0+128 first 192+64 first begins ");
  EXPECT_FALSE(runs.is_complete(kFirst, 0));
  EXPECT_FALSE(runs.has_landed(kFirst, 0));
  runs.complete(kB, 0);
  runs.complete(kD, 0);
  EXPECT_TRUE(runs.is_complete(kFirst, 0));
  EXPECT_EQ(text(runs.take(kFirst, 0, true)), "128+64 first 256+3840 first ");
  EXPECT_TRUE(runs.has_landed(kFirst, 0));
  EXPECT_EQ(text(runs.take(kSecond, 0, true)), "0+4096 first begins ");
}

TEST(GradientRuns, SayWhenAChunkHasLandedInEveryMicroBatch) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, StepRounds{2});
  for (int step = 0; step < 2; ++step) {
    runs.begin_step();
    for (const uint32_t m : {0u, 1u}) {
      runs.complete(kD, m);
      EXPECT_EQ(text(runs.take(kSecond, m, true)), m == 0 ? "0+4096 first begins " : "0+4096 ends");
    }
    EXPECT_EQ(text(runs.take(kFirst, 1, true)), "256+3840 first begins ");
    for (const TensorId tensor : {kA, kB, kC}) runs.complete(tensor, 1);
    EXPECT_EQ(text(runs.take(kFirst, 1, true)), "0+256 first ends");
  }
}

// One lands for the first time while its neighbour has landed before: they are added differently.
TEST(GradientRuns, KeepApartWhatHasLandedAndWhatHasNot) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, StepRounds{3});
  runs.begin_step();
  runs.complete(kA, 0);
  runs.take(kFirst, 0, true);
  runs.complete(kA, 1);
  runs.complete(kB, 1);
  runs.complete(kC, 1);
  EXPECT_TRUE(runs.is_pending(kFirst, 0));
  EXPECT_FALSE(runs.is_pending(kFirst, 3));
  EXPECT_EQ(text(runs.take(kFirst, 1, true)), "0+128 128+128 first ");
  EXPECT_FALSE(runs.is_pending(kFirst, 0));
}

// Groups of two of five micro-batches; the gradient of A is missing in the second and the fourth.
TEST(GradientRuns, SayWhichGroupIsOpen) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, StepRounds{.micro_batches = 5, .group = 2});
  runs.begin_step();
  std::string open;
  for (uint32_t m = 0; m < 5; ++m) {
    for (const TensorId tensor : {kA, kB, kC, kD}) runs.complete(tensor, m);
    for (const GradientRun& run : runs.take(kFirst, m, m % 2 == 0).runs)
      open += std::to_string(run.open_group);
  }
  EXPECT_EQ(open, "01122");
}

TEST(GradientRuns, OfGroupsThatDifferAreNotMerged) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, StepRounds{.micro_batches = 5, .group = 2});
  runs.begin_step();
  runs.complete(kA, 0), runs.complete(kB, 0);
  runs.take(kFirst, 0, true);
  runs.complete(kA, 2);
  runs.take(kFirst, 2, true);
  runs.complete(kA, 3), runs.complete(kB, 3);
  EXPECT_EQ(text(runs.take(kFirst, 3, true)), "0+128 128+64 ");
}

// With several ranks a round has several micro-batches, and the open group is that of its last one.
TEST(GradientRuns, CountGroupsInMicroBatchesOfAllRanks) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, StepRounds{.micro_batches = 7, .ranks = 3, .group = 2});
  runs.begin_step();
  std::string open;
  for (uint32_t round = 0; round < 3; ++round) {
    for (const TensorId tensor : {kA, kB, kC, kD}) runs.complete(tensor, round);
    open += std::to_string(runs.take(kFirst, round, true).runs.front().open_group);
  }
  EXPECT_EQ(open, "023");
}

// What the landings of a run do, as one letter per step, in groups of two of five micro-batches.
std::string steps_text(uint32_t micro_batch, bool is_first, uint32_t open_group, bool has_gradient) {
  GradientRun run{.element_count = 1, .is_first = is_first, .open_group = open_group};
  const LandingSteps steps =
      landing_steps(run, micro_batch, has_gradient, StepRounds{.micro_batches = 5, .group = 2});
  std::string text;
  if (steps.clears) text += "clears ";
  if (steps.joins_before) text += steps.is_first_group ? "joins-first " : "joins ";
  if (steps.clears_group) text += "clears-group ";
  if (has_gradient) text += steps.replaces ? "replaces" : "adds";
  if (steps.joins_after) text += " joins";
  return text;
}

TEST(LandingSteps, OpenAGroupAndJoinTheOneBefore) {
  EXPECT_EQ(steps_text(0, true, 0, true), "replaces");
  EXPECT_EQ(steps_text(1, false, 1, true), "adds");
  EXPECT_EQ(steps_text(2, false, 1, true), "joins-first replaces");
  EXPECT_EQ(steps_text(3, false, 2, true), "adds");
  EXPECT_EQ(steps_text(4, false, 2, true), "joins replaces joins");
}

TEST(LandingSteps, CountWhatIsMissingAsZerosAtTheBeginningAndLeaveTheSumAloneLater) {
  EXPECT_EQ(steps_text(0, true, 0, false), "clears ");
  EXPECT_EQ(steps_text(1, false, 0, true), "clears-group adds");
  EXPECT_EQ(steps_text(1, false, 1, false), "");
  EXPECT_EQ(steps_text(2, true, 0, true), "clears replaces");
  EXPECT_EQ(steps_text(3, false, 1, true), "joins-first clears-group adds");
  EXPECT_EQ(steps_text(4, false, 1, false), "joins-first ");
  EXPECT_EQ(steps_text(4, false, 2, false), "joins ");
  EXPECT_EQ(steps_text(4, false, 0, false), "");
}

TEST(LandingSteps, WithoutGroupsAreThoseOfOneSum) {
  const auto first = landing_steps({.is_first = true}, 0, true, StepRounds{3});
  EXPECT_TRUE(first.replaces && !first.clears && !first.joins_before && !first.joins_after);
  const auto later = landing_steps({.is_first = true}, 1, true, StepRounds{3});
  EXPECT_TRUE(later.clears && !later.replaces);
  // One group of all micro-batches is the sum of one rank.
  const auto last = landing_steps({}, 2, true, StepRounds{.micro_batches = 3, .group = 3});
  EXPECT_FALSE(last.clears || last.replaces || last.joins_before || last.joins_after);
}

TEST(GradientRunsDeathTest, ATensorIsCompleteOnceInAMicroBatchAndInTheirOrder) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, StepRounds{3});
  runs.begin_step();
  runs.complete(kA, 1);
  EXPECT_DEATH(runs.complete(kA, 1), "the gradient of a is complete in 2 micro-batches");
  EXPECT_DEATH(runs.complete(kA, 0), "cannot become so in number 0");
  EXPECT_DEATH(runs.complete(kB, 3), "cannot become so in number 3");
}

}  // namespace
}  // namespace terrace::gradient_runs_test
