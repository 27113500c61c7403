#include <terrace/runtime/planning/planning_progress.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace terrace::planning_progress_test {
namespace {

using ::testing::ElementsAre;

class PassingLog final : public Log {
 public:
  void write(LogLevel, std::string_view line) override { lines.push_back("log: " + std::string(line)); }
  void in_passing(std::string_view line) override { lines.emplace_back(line); }
  void end_passing() override { lines.emplace_back("end"); }
  std::vector<std::string> lines;
};

constexpr uint64_t kSecond = 1'000'000'000;

TEST(PlanningProgress, SaysNothingOfAPlanThatIsMadeInTwoSeconds) {
  FakeClock clock;
  PassingLog log;
  {
    PlanningProgress progress(log, &clock);
    progress.begin_size(9);
    clock.advance(2 * kSecond - 1);
    progress.note();
  }
  EXPECT_TRUE(log.lines.empty());
}

TEST(PlanningProgress, LeavesALineAndThenPasses) {
  FakeClock clock;
  PassingLog log;
  {
    PlanningProgress progress(log, &clock);
    progress.begin_size(9);
    progress.begin_size(9);
    clock.advance(2 * kSecond);
    progress.note();
    clock.advance(kSecond / 10);
    progress.note();  // too soon
    clock.advance(kSecond);
    progress.begin_taken();
    progress.note();
  }
  EXPECT_THAT(log.lines, ElementsAre("log: planning: chunk size 2 of at most 9, 2 s so far",
                                     "planning: with the chunk size that is taken, 3 s so far", "end"));
}

}  // namespace
}  // namespace terrace::planning_progress_test
