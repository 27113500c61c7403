#include <terrace/base/progress.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace terrace::progress_test {
namespace {

class PassingLog final : public Log {
 public:
  void write(LogLevel, std::string_view) override {}
  void in_passing(std::string_view line) override { lines.emplace_back(line); }
  void end_passing() override { lines.emplace_back("end"); }
  std::vector<std::string> lines;
};

constexpr uint64_t kSecond = 1'000'000'000;

TEST(ProgressReport, SaysNothingOfWhatTakesLessThanASecond) {
  FakeClock clock;
  PassingLog log;
  {
    ProgressReport report(log, "saving", 100, "pieces", &clock);
    clock.advance(kSecond - 1);
    report.add(99);
  }
  EXPECT_TRUE(log.lines.empty());
}

TEST(ProgressReport, SaysHowFarItIsFiveTimesASecondAtMost) {
  FakeClock clock;
  PassingLog log;
  {
    ProgressReport report(log, "saving step 3", uint64_t{4} << 20, {}, &clock);
    clock.advance(2 * kSecond);
    report.add(uint64_t{1} << 20);
    clock.advance(kSecond / 10);
    report.add(uint64_t{1} << 20);
    clock.advance(2 * kSecond);
    report.add(0);
  }
  EXPECT_EQ(log.lines,
            (std::vector<std::string>{"saving step 3: 1.00 MiB of 4.00 MiB, 25 %, ETA 6 s",
                                      "saving step 3: 2.00 MiB of 4.00 MiB, 50 %, ETA 4 s", "end"}));
}

}  // namespace
}  // namespace terrace::progress_test
