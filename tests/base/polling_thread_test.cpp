#include <terrace/base/polling_thread.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

namespace terrace::polling_thread_test {
namespace {

constexpr std::chrono::milliseconds kSoon{1};
constexpr std::chrono::hours kNever{1000};

void wait_for(const std::atomic<int>& count, int least) {
  while (count < least) std::this_thread::yield();
}

TEST(PollingThread, LooksAgainAndAgainUntilItIsDestroyed) {
  std::atomic<int> looks = 0;
  {
    const PollingThread thread(kSoon, [&] { return ++looks > 0; });
    wait_for(looks, 3);
  }
  const int seen = looks;
  std::this_thread::sleep_for(5 * kSoon);
  EXPECT_EQ(looks, seen);
}

TEST(PollingThread, EndsWhereALookSaysSo) {
  std::atomic<int> looks = 0;
  const PollingThread thread(kSoon, [&] { return ++looks < 2; });
  wait_for(looks, 2);
  std::this_thread::sleep_for(5 * kSoon);
  EXPECT_EQ(looks, 2);
}

TEST(PollingThread, BeginsOnTheThreadThatLooks) {
  std::atomic<int> looks = 0;
  std::optional<std::thread::id> begun, looked;
  {
    const PollingThread thread(
        kSoon, [&] { return looked = std::this_thread::get_id(), ++looks < 1; },
        [&] { begun = std::this_thread::get_id(); });
    wait_for(looks, 1);
  }
  EXPECT_TRUE(begun.has_value());
  EXPECT_EQ(begun, looked);
  EXPECT_NE(begun, std::this_thread::get_id());
}

// Else the test would take as long.
TEST(PollingThread, WaitsForNoPauseWhereItIsDestroyed) {
  std::atomic<int> looks = 0;
  {
    const PollingThread thread(kNever, [&] { return ++looks > 0; });
  }
  EXPECT_EQ(looks, 0);
}

}  // namespace
}  // namespace terrace::polling_thread_test
