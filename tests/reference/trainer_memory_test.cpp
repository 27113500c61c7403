// Host memory that is given and taken while a Trainer trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/base/units.h>

#include "reference/small_training.h"
#include "runtime/budget/fake_cgroup.h"

namespace terrace::trainer_memory_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSecondNs = 1'000'000'000;

// What one step and its update move.
OffloadCounters moved_by_a_step(SmallTraining& run, std::vector<double>& losses) {
  const OffloadCounters before = run.trainer->offloader().report().counters();
  losses.push_back(run.train(1).front());
  run.trainer->finish_update();
  return run.trainer->offloader().report().counters() - before;
}

uint64_t host_bytes(SmallTraining& run) {
  uint64_t bytes = 0;
  for (const TierUse& use : run.trainer->offloader().budget().ledger()) bytes += use.bytes;
  return bytes;
}

TEST(TrainerMemory, HalvedInMidRunIsInForceWithTheNextStepAndChangesNoLoss) {
  for (const char* mode : {"after_backward", "next_forward", "during_backward"}) {
    SCOPED_TRACE(mode);
    SmallTraining plain(mode);
    const std::vector<double> expected = plain.train(8);

    SmallTraining run(mode);
    const uint32_t all = run.kept();
    ASSERT_EQ(all, run.trainer->plan().memory.record_chunks);
    ASSERT_GE(all, 6u);
    std::vector<double> losses = run.train(2);
    EXPECT_EQ(moved_by_a_step(run, losses).record_read_bytes, 0u);

    const uint64_t full = run.trainer->plan().memory.host_bytes;
    const uint64_t least = run.trainer->offloader().budget().least();
    const uint64_t held = host_bytes(run);
    const uint64_t half = least + (full - least) / 2;
    HostBudgetChange change = run.trainer->set_host_budget(half);
    EXPECT_FALSE(change.refusal);
    EXPECT_EQ(change.budget_bytes, half);
    EXPECT_EQ(change.kept_chunks, all / 2);
    EXPECT_EQ(change.write_bytes, (all - all / 2) * run.slot());
    EXPECT_EQ(held - host_bytes(run), (all - all / 2) * run.slot());
    EXPECT_LE(host_bytes(run), half);
    const OffloadCounters streamed = moved_by_a_step(run, losses);
    EXPECT_EQ(streamed.record_read_bytes, (all - all / 2) * run.slot());
    EXPECT_EQ(streamed.record_write_bytes, streamed.record_read_bytes);
    losses.push_back(run.train(1).front());

    change = run.trainer->set_host_budget(kGiB);  // more than it began with
    EXPECT_EQ(change.kept_chunks, all);
    EXPECT_EQ(change.budget_bytes, 64 * kMiB);
    EXPECT_EQ(change.read_bytes, (all - all / 2) * run.slot());
    EXPECT_EQ(moved_by_a_step(run, losses).record_read_bytes, 0u);
    for (const double loss : run.train(2)) losses.push_back(loss);
    EXPECT_EQ(losses, expected);
    run.trainer->offloader().commits().keep_tier(false);
    plain.trainer->offloader().commits().keep_tier(false);
  }
}

TEST(TrainerMemory, CountsWhatAChangeMovesInTheNextStepsReport) {
  SmallTraining run("after_backward");
  run.train(1);
  const HostBudgetChange change = run.trainer->set_host_budget(run.trainer->offloader().budget().least());
  EXPECT_EQ(change.kept_chunks, 0u);
  const StepReport report = run.trainer->step();
  EXPECT_EQ(report.moved.cache_write_bytes, change.write_bytes);
  EXPECT_GE(report.keeping_ns, change.ns);
  EXPECT_EQ(run.trainer->step().moved.cache_write_bytes, 0u);
}

TEST(TrainerMemory, OfLessThanTheRunNeedsIsRefusedAndNothingChanges) {
  SmallTraining run;
  run.train(1);
  const uint32_t kept = run.kept();
  const HostBudgetChange change = run.trainer->set_host_budget(run.trainer->offloader().budget().least() - 1);
  ASSERT_TRUE(change.refusal);
  EXPECT_EQ(change.refusal->kind(), ErrorKind::capacity);
  EXPECT_EQ(change.kept_chunks, kept);
  EXPECT_EQ(change.budget_bytes, 64 * kMiB);
  EXPECT_EQ(change.write_bytes, 0u);
  run.train(1);
}

TEST(TrainerMemory, ShrinksUnderPressureAndComesBackWithoutIt) {
  SmallTraining plain;
  const std::vector<double> expected = plain.train(6);

  FakeCgroup machine;
  FakeClock clock;
  clock.advance(100 * kSecondNs);
  machine.set(kGiB, kMiB, 0, 0);
  SmallTraining run("after_backward", &clock, machine.root());
  const uint32_t all = run.kept();
  std::vector<double> losses = run.train(1);
  EXPECT_FALSE(run.trainer->look_after_memory());

  // Less than two reserves is left, and more than one.
  machine.set(kGiB, kGiB - kGiB / 8 + 3 * run.slot(), 0, 0);
  clock.advance(kSecondNs);
  EXPECT_FALSE(run.trainer->look_after_memory());
  machine.set(16 * run.slot(), 15 * run.slot() + 1, 0, 0);  // a reserve is one record
  clock.advance(kSecondNs);
  EXPECT_TRUE(run.trainer->look_after_memory());
  EXPECT_EQ(run.kept(), all - 2);
  ASSERT_FALSE(run.log.lines().empty());
  EXPECT_EQ(run.log.lines().back().level, LogLevel::warning);
  EXPECT_THAT(run.log.lines().back().text, HasSubstr("memory pressure: the cgroup /job/step holds"));
  losses.push_back(run.train(1).front());

  machine.set(kGiB, kMiB, 0, 0);
  clock.advance(29 * kSecondNs);
  EXPECT_FALSE(run.trainer->look_after_memory());
  losses.push_back(run.train(1).front());
  for (uint32_t kept = all - 2; kept < all; ++kept) {
    clock.advance(30 * kSecondNs);
    EXPECT_EQ(run.kept(), kept);
    EXPECT_TRUE(run.trainer->look_after_memory());
    losses.push_back(run.train(1).front());
  }
  EXPECT_EQ(run.kept(), all);
  EXPECT_EQ(run.trainer->offloader().budget().in_force(), 64 * kMiB);
  clock.advance(60 * kSecondNs);
  EXPECT_FALSE(run.trainer->look_after_memory());
  losses.push_back(run.train(1).front());
  EXPECT_EQ(losses, expected);
}

TEST(TrainerMemory, ComesBackToWhatWasAskedForAndNoFurther) {
  FakeCgroup machine;
  FakeClock clock;
  clock.advance(100 * kSecondNs);
  SmallTraining run("after_backward", &clock, machine.root());
  const uint64_t least = run.trainer->offloader().budget().least();
  EXPECT_EQ(run.trainer->set_host_budget(least + 3 * run.slot()).kept_chunks, 3u);
  machine.set(16 * run.slot(), 16 * run.slot(), 0, 0);
  EXPECT_TRUE(run.trainer->look_after_memory());
  EXPECT_EQ(run.kept(), 1u);
  machine.set(kGiB, kMiB, 0, 0);
  for (int i = 0; i < 4; ++i) {
    clock.advance(40 * kSecondNs);
    run.trainer->look_after_memory();
  }
  EXPECT_EQ(run.kept(), 3u);
}

TEST(TrainerMemory, StaysAsItIsWhereTheConfigurationSaysSo) {
  FakeCgroup machine;
  FakeClock clock;
  SmallTraining run("after_backward", &clock, machine.root(), "false");
  const uint32_t all = run.kept();
  machine.set(kGiB, kGiB, 0, 90);
  EXPECT_FALSE(run.trainer->look_after_memory());
  EXPECT_EQ(run.kept(), all);
}

}  // namespace
}  // namespace terrace::trainer_memory_test
