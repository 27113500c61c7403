#include <terrace/base/log.h>

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace terrace::log_test {
namespace {

TEST(MemoryLog, KeepsLinesWithTheirLevelInOrder) {
  MemoryLog log;
  log.info("one");
  log.warning("two");
  log.error("three");
  const std::vector<MemoryLog::Line> lines = log.lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].level, LogLevel::info);
  EXPECT_EQ(lines[1].level, LogLevel::warning);
  EXPECT_EQ(lines[2].level, LogLevel::error);
  EXPECT_EQ(lines[0].text + lines[1].text + lines[2].text, "onetwothree");
}

TEST(Log, SaysTheSameWarningOnceAndAnotherAgain) {
  MemoryLog log;
  log.warning_once("RLIMIT_MEMLOCK is 8.0 MiB");
  log.warning_once("O_DIRECT was refused");
  log.warning_once("RLIMIT_MEMLOCK is 8.0 MiB");
  ASSERT_EQ(log.lines().size(), 2u);
  EXPECT_EQ(log.lines()[1].text, "O_DIRECT was refused");
  MemoryLog another;
  another.warning_once("RLIMIT_MEMLOCK is 8.0 MiB");
  EXPECT_EQ(another.lines().size(), 1u) << "each log has its own memory";
}

TEST(Log, SaysAWarningOnceThoughManyThreadsRaiseIt) {
  MemoryLog log;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) log.warning_once("warning " + std::to_string(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log.lines().size(), 100u);
}

TEST(StderrLog, WritesOneLineWithItsLevelToStderr) {
  StderrLog log;
  ::testing::internal::CaptureStderr();
  log.info("tier \"host\": 8.0 GiB");
  log.warning("slow");
  log.error("failed");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "terrace: tier \"host\": 8.0 GiB\nterrace: warning: slow\nterrace: error: failed\n");
}

}  // namespace
}  // namespace terrace::log_test
