// What many ranks lose, beside what is known of it.
#include <terrace/runtime/planning/rank_hazards.h>

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace terrace::rank_hazards_test {
namespace {

TEST(Stragglers, ArePutAtMostByTheClosedForm) {
  EXPECT_EQ(greatest_normal_at_most(1), 0);
  EXPECT_NEAR(greatest_normal_at_most(10000), 4.29193, 1e-5);
}

// The means of the greatest of n normals: of two and three by hand, else from tables of order statistics. The
// bound is four standard errors.
TEST(Stragglers, AreDrawnWithTheMeanOfTheGreatestNormal) {
  constexpr double kPi = std::numbers::pi;
  EXPECT_NEAR(greatest_normal_drawn(1, 10000, 1), 0, 0.04);
  EXPECT_NEAR(greatest_normal_drawn(2, 10000, 1), 1 / std::sqrt(kPi), 0.034);
  EXPECT_NEAR(greatest_normal_drawn(3, 10000, 1), 1.5 / std::sqrt(kPi), 0.03);
  EXPECT_NEAR(greatest_normal_drawn(10, 10000, 1), 1.53875, 0.024);
  EXPECT_NEAR(greatest_normal_drawn(100, 2000, 1), 2.50759, 0.04);
  EXPECT_NEAR(greatest_normal_drawn(1000, 1000, 1), 3.24144, 0.045);
}

TEST(Stragglers, ApproachTheClosedFormFromBelow) {
  double before = 0;
  for (const uint32_t ranks : {8u, 64u, 512u, 4096u}) {
    const double part = greatest_normal_drawn(ranks, 500, 7) / greatest_normal_at_most(ranks);
    EXPECT_GT(part, before);
    EXPECT_LT(part, 1);
    before = part;
  }
  EXPECT_GT(before, 0.87);
}

TEST(Stragglers, AreTheSameOfASeed) {
  EXPECT_EQ(greatest_normal_drawn(64, 10, 5), greatest_normal_drawn(64, 10, 5));
  EXPECT_NE(greatest_normal_drawn(64, 10, 5), greatest_normal_drawn(64, 10, 6));
}

// Five years of 365 days are 157,680,000 s: 10,000 ranks fail every 15,768 s.
TEST(Faults, LoseLeastWithTheIntervalOfYoung) {
  const FaultQuestion question = {
      .ranks = 10000, .mtbf_seconds = 157.68e6, .commit_seconds = 30, .restart_seconds = 300};
  const FaultPlan plan = plan_faults(question);
  EXPECT_NEAR(plan.failures_a_day, 86400 / 15768.0, 1e-9);
  EXPECT_NEAR(plan.interval_seconds, std::sqrt(2 * 30 * 15768.0), 1e-9);
  EXPECT_NEAR(plan.commits, 30 / plan.interval_seconds, 1e-12);
  EXPECT_NEAR(plan.lost_work, plan.interval_seconds / 2 / 15768, 1e-12);
  EXPECT_NEAR(plan.restarts, 300 / 15768.0, 1e-12);
  EXPECT_NEAR(plan.lost(), 0.0807, 5e-5);
  const auto lost_at = [&](double interval) { return 30 / interval + interval / 2 / 15768 + plan.restarts; };
  EXPECT_LT(plan.lost(), lost_at(0.9 * plan.interval_seconds));
  EXPECT_LT(plan.lost(), lost_at(1.1 * plan.interval_seconds));
}

}  // namespace
}  // namespace terrace::rank_hazards_test
