// Loops of two threads beside each other (Workers::beside): each is done whatever the other does.
#include <terrace/base/workers.h>

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/patience.h"

namespace terrace::workers_beside_test {
namespace {

// Every body of the first loop waits for the end of the second: it may not need a thread that is in the
// first.
TEST(WorkersBeside, WaitForNoLoopOfTheOthers) {
  for (const size_t thread_count : {1, 2, 3}) {
    Workers workers(thread_count);
    Workers second = workers.beside();
    EXPECT_EQ(second.thread_count(), thread_count);
    std::atomic<bool> begun = false, over = false, gave_up = false;
    std::atomic<size_t> calls = 0;
    std::thread other([&] {
      while (!begun) std::this_thread::yield();
      second.parallel_for(1000, [&](size_t) { ++calls; });
      over = true;
    });
    workers.parallel_for(thread_count, [&](size_t) {
      begun = true;
      if (!testing::comes_true([&] { return over.load(); })) gave_up = true;
    });
    other.join();
    EXPECT_FALSE(gave_up) << thread_count << " threads";
    EXPECT_EQ(calls, 1000u);
  }
}

TEST(WorkersBeside, CallEachBodyOnceForEveryIndexWithIndexesOfTheirOwn) {
  Workers workers(3);
  Workers second = workers.beside();
  std::atomic<bool> wrong = false;
  const auto loop = [&](Workers& with, size_t count) {
    for (size_t round = 0; round < 300; ++round) {
      std::vector<std::atomic<int>> calls(count), busy(3);
      with.parallel_for(count, [&](size_t i) {
        const size_t thread = with.current_thread_index();
        if (thread >= 3 || ++busy[thread] != 1) wrong = true;
        ++calls[i];
        --busy[thread % 3];
      });
      for (const std::atomic<int>& each : calls) wrong = wrong || each != 1;
    }
  };
  std::thread other([&] { loop(second, 37); });
  loop(workers, 100);
  other.join();
  EXPECT_FALSE(wrong);
}

}  // namespace
}  // namespace terrace::workers_beside_test
