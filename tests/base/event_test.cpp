#include <terrace/base/event.h>

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace terrace::event_test {
namespace {

std::exception_ptr failure(const char* text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

TEST(Event, StartsDoneSoThatWaitingReturns) {
  const Event event;
  EXPECT_TRUE(event.done());
  EXPECT_FALSE(event.failed());
  event.wait();
}

TEST(Event, IsDoneAfterAsManyCompletionsAsItExpects) {
  Event event;
  event.begin(3);
  event.complete_one();
  event.complete_one();
  EXPECT_FALSE(event.done());
  event.complete_one();
  EXPECT_TRUE(event.done());
  EXPECT_EQ(event.failure(), nullptr);
}

TEST(Event, RethrowsTheFirstFailureInEveryWaitUntilItBeginsAgain) {
  Event event;
  event.begin(3);
  event.complete_one(failure("first"));
  EXPECT_FALSE(event.failed()) << "not before it is done";
  EXPECT_EQ(event.failure(), nullptr);
  event.complete_one(failure("second"));
  event.complete_one();
  EXPECT_TRUE(event.failed());
  for (int round = 0; round < 2; ++round) {
    try {
      event.wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "first");
    }
  }
  event.wait_done();
  event.begin();
  event.complete_one();
  EXPECT_FALSE(event.failed());
  event.wait();
}

TEST(Event, MakesWhatTheCompletingThreadsWroteVisibleToTheWaiter) {
  constexpr uint32_t kThreads = 4;
  Event event;
  for (int round = 0; round < 50; ++round) {
    std::vector<int> written(kThreads);
    event.begin(kThreads);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        written[t] = 1;
        event.complete_one(t == 2 ? failure("from a thread") : nullptr);
      });
    }
    event.wait_done();
    EXPECT_EQ(written, std::vector<int>(kThreads, 1));
    EXPECT_TRUE(event.failed());
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(EventDeathTest, RefusesToBeUsedOutOfOrder) {
  EXPECT_DEATH(
      {
        Event event;
        event.complete_one();
      },
      "completed more often than it was begun");
  EXPECT_DEATH(
      {
        Event event;
        event.begin(2);
        event.begin();
      },
      "begun while 2 completions are pending");
  EXPECT_DEATH(
      {
        Event event;
        event.begin(0);
      },
      "at least one completion");
  EXPECT_DEATH(
      {
        Event event;
        event.begin();
      },
      "1 completions are still expected");
}

}  // namespace
}  // namespace terrace::event_test
