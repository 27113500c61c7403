#include <terrace/runtime/observe/step_place.h>

#include <gtest/gtest.h>

namespace terrace::step_place_test {
namespace {

constexpr StepShape kShape{.micro_batches = 4, .layers = 12};

TEST(PlaceInStep, NamesMicroBatchDirectionAndLayerFromOne) {
  EXPECT_EQ(place_in_step("mb1/h.6.mlp.fc/backward", kShape), "micro-batch 2 of 4, backward, layer 7 of 12");
  EXPECT_EQ(place_in_step("mb0/h.0/forward", kShape), "micro-batch 1 of 4, forward, layer 1 of 12");
  EXPECT_EQ(place_in_step("mb3/h.11.attn.qkv/recompute", kShape),
            "micro-batch 4 of 4, backward, layer 12 of 12");
  EXPECT_EQ(place_in_step("mb0/embedding.positions/forward", kShape),
            "micro-batch 1 of 4, forward, embedding");
  EXPECT_EQ(place_in_step("mb0/head.2/backward", {1, 12}), "backward, head");
}

TEST(PlaceInStep, LeavesOtherActivitiesAsTheyAre) {
  for (const char* activity : {"", "the update", "a commit", "mb", "mb1", "mb1/", "mb1/forward",
                               "mbx/h.1/forward", "mb1/h.1/generate", "mb99999999999/h.1/forward"}) {
    EXPECT_EQ(place_in_step(activity, kShape), activity);
  }
}

}  // namespace
}  // namespace terrace::step_place_test
