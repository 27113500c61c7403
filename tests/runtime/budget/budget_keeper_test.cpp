#include <terrace/runtime/budget/budget_keeper.h>

#include <gtest/gtest.h>

#include <terrace/base/units.h>

#include "reference/step_rig.h"
#include "runtime/budget/fake_cgroup.h"

namespace terrace::budget_keeper_test {
namespace {

using namespace trainer_tests;

constexpr uint64_t kSecondNs = 1'000'000'000;

struct HostBudgetRig : private ScratchFolder, StepRig {
  HostBudgetRig() : StepRig(states_on(ScratchFolder::path())), budget(offloader, between, log) {
    fake_clock.advance(100 * kSecondNs);
  }

  uint32_t kept() const { return offloader.budget().resident_chunks(); }
  uint64_t slot() const { return offloader.plan().record_slot_bytes; }
  // Looks a minute later.
  bool look() {
    fake_clock.advance(60 * kSecondNs);
    return budget.look();
  }

  static RunOptions states_on(const fs::path& nvme) {
    RunOptions run;
    run.nvme = nvme;
    run.precision = "true";
    return run;
  }

  FakeCgroup machine;
  FakeClock fake_clock;
  BudgetKeeper budget;
};

TEST(BudgetKeeper, DoesNotLookBeforeItWatches) {
  HostBudgetRig rig;
  rig.machine.set(16 * rig.slot(), 16 * rig.slot(), 0, 0);
  const uint32_t all = rig.kept();
  EXPECT_FALSE(rig.look());
  EXPECT_EQ(rig.kept(), all);
}

TEST(BudgetKeeper, GivesBackUnderPressureAndTakesUpWhatItWasSetToAndNoMore) {
  HostBudgetRig rig;
  rig.budget.watch(rig.machine.root(), rig.fake_clock);
  const uint64_t least = rig.offloader.budget().least();
  EXPECT_EQ(rig.budget.set(least + 3 * rig.slot()).kept_chunks, 3u);
  EXPECT_FALSE(rig.budget.set(least - 1).refusal->parts().reason.empty());  // and is not what is wanted
  rig.machine.set(16 * rig.slot(), 16 * rig.slot(), 0, 0);
  EXPECT_TRUE(rig.look());
  EXPECT_EQ(rig.kept(), 1u);
  EXPECT_EQ(rig.log.lines().back().level, LogLevel::warning);
  rig.machine.set(kGiB, kMiB, 0, 0);
  for (int i = 0; i < 4; ++i) rig.look();
  EXPECT_EQ(rig.kept(), 3u);
  EXPECT_EQ(rig.offloader.budget().in_force(), least + 3 * rig.slot());
  EXPECT_EQ(rig.log.lines().back().level, LogLevel::info);
}

TEST(BudgetKeeper, ReportsWhatAChangeMovesAndLeavesItToTheNextStep) {
  HostBudgetRig rig;
  const uint32_t all = rig.kept();
  const HostBudgetChange less = rig.budget.set(rig.offloader.budget().least());
  EXPECT_EQ(less.kept_chunks, 0u);
  EXPECT_EQ(less.write_bytes, all * rig.slot());
  const HostBudgetChange more = rig.budget.set(kGiB);
  EXPECT_EQ(more.kept_chunks, all);
  EXPECT_EQ(more.read_bytes, all * rig.slot());
  const OffloadCounters counted = rig.between.take();
  EXPECT_EQ(counted.cache_write_bytes, less.write_bytes);
  EXPECT_EQ(counted.cache_read_bytes, more.read_bytes);
  EXPECT_GE(counted.time.total_ns(), less.ns + more.ns);
}

}  // namespace
}  // namespace terrace::budget_keeper_test
