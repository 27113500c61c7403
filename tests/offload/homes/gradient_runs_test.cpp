#include <terrace/offload/homes/gradient_runs.h>

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
  GradientRuns runs(space, 2);
  runs.begin_step();
  runs.complete(kC, 0);
  runs.complete(kA, 0);
  EXPECT_EQ(text(runs.take(kFirst, 0)), "0+128 first 192+64 first begins ");
  EXPECT_FALSE(runs.is_complete(kFirst, 0));
  EXPECT_FALSE(runs.has_landed(kFirst, 0));
  runs.complete(kB, 0);
  runs.complete(kD, 0);
  EXPECT_TRUE(runs.is_complete(kFirst, 0));
  EXPECT_EQ(text(runs.take(kFirst, 0)), "128+64 first 256+3840 first ");
  EXPECT_TRUE(runs.has_landed(kFirst, 0));
  EXPECT_EQ(text(runs.take(kSecond, 0)), "0+4096 first begins ");
}

TEST(GradientRuns, SayWhenAChunkHasLandedInEveryMicroBatch) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, 2);
  for (int step = 0; step < 2; ++step) {
    runs.begin_step();
    for (const uint32_t m : {0u, 1u}) {
      runs.complete(kD, m);
      EXPECT_EQ(text(runs.take(kSecond, m)), m == 0 ? "0+4096 first begins " : "0+4096 ends");
    }
    EXPECT_EQ(text(runs.take(kFirst, 1)), "256+3840 first begins ");
    for (const TensorId tensor : {kA, kB, kC}) runs.complete(tensor, 1);
    EXPECT_EQ(text(runs.take(kFirst, 1)), "0+256 first ends");
  }
}

// One lands for the first time while its neighbour has landed before: they are added differently.
TEST(GradientRuns, KeepApartWhatHasLandedAndWhatHasNot) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, 3);
  runs.begin_step();
  runs.complete(kA, 0);
  runs.take(kFirst, 0);
  runs.complete(kA, 1);
  runs.complete(kB, 1);
  runs.complete(kC, 1);
  EXPECT_TRUE(runs.is_pending(kFirst, 0));
  EXPECT_FALSE(runs.is_pending(kFirst, 3));
  EXPECT_EQ(text(runs.take(kFirst, 1)), "0+128 128+128 first ");
  EXPECT_FALSE(runs.is_pending(kFirst, 0));
}

TEST(GradientRunsDeathTest, ATensorIsCompleteOnceInAMicroBatchAndInTheirOrder) {
  const FlatSpace space = make_space();
  GradientRuns runs(space, 3);
  runs.begin_step();
  runs.complete(kA, 1);
  EXPECT_DEATH(runs.complete(kA, 1), "the gradient of a is complete in 2 micro-batches");
  EXPECT_DEATH(runs.complete(kA, 0), "cannot become so in number 0");
  EXPECT_DEATH(runs.complete(kB, 3), "cannot become so in number 3");
}

}  // namespace
}  // namespace terrace::gradient_runs_test
