#include <terrace/runtime/budget/between_steps.h>

#include <gtest/gtest.h>

#include <stdexcept>

#include "reference/step_rig.h"

namespace terrace::between_steps_test {
namespace {

using namespace trainer_tests;

void pass_time(StepRig& rig) {
  const uint64_t begun = rig.clock.now_ns();
  while (rig.clock.now_ns() - begun < 1'000'000) continue;
}

TEST(BetweenSteps, CountWhatIsDoneUntilItIsTaken) {
  StepRig rig({});
  const OffloadCounters first = rig.between.count([&] { pass_time(rig); });
  EXPECT_GE(first.time.total_ns(), 1'000'000u);
  const KeptState kept = rig.between.keep([&] {
    pass_time(rig);
    return KeptState{7, {}};
  });
  EXPECT_EQ(kept.commit_step, 7u);
  const OffloadCounters all = rig.between.take();
  EXPECT_GE(all.time.total_ns(), first.time.total_ns() + 1'000'000);
  EXPECT_GE(all.time[TimeCause::commit], 1'000'000u);
  EXPECT_EQ(rig.between.take().time.total_ns(), 0u);
}

TEST(BetweenSteps, CountNothingThatFailed) {
  StepRig rig({});
  EXPECT_THROW(rig.between.keep([&]() -> KeptState {
    pass_time(rig);
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  EXPECT_EQ(rig.between.take().time.total_ns(), 0u);
}

}  // namespace
}  // namespace terrace::between_steps_test
