#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <thread>
#include <vector>

#include <terrace/memory/device/copy_stream.h>

#include "support/allocation_counter.h"

namespace terrace::copy_stream_test {
namespace {

std::vector<std::byte> filled(size_t bytes, unsigned value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

std::exception_ptr failure(const char* text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

TEST(CopyStream, CopiesAndCounts) {
  CopyStream stream;
  const std::vector<std::byte> source = filled(1000, 7);
  std::vector<std::byte> destination = filled(1000, 0);
  Event done;
  done.begin();
  stream.enqueue({.destination = destination.data(), .source = source.data(), .bytes = 1000, .done = &done});
  done.wait();
  EXPECT_EQ(destination, source);
  EXPECT_EQ(stream.copied_bytes(), 1000u);
}

TEST(CopyStream, RunsTasksInTheOrderInWhichTheyCame) {
  CopyStream stream({.queue_depth = 4});
  std::vector<std::vector<std::byte>> sources;
  for (unsigned i = 0; i < 200; ++i) sources.push_back(filled(64, i));
  std::vector<std::byte> destination = filled(64, 255);
  std::deque<Event> done(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    done[i].begin();
    stream.enqueue(
        {.destination = destination.data(), .source = sources[i].data(), .bytes = 64, .done = &done[i]});
  }
  done.back().wait();
  for (const Event& event : done) EXPECT_TRUE(event.done());
  EXPECT_EQ(destination, sources.back());
}

TEST(CopyStream, WaitsForTheEventItWasGiven) {
  CopyStream stream;
  const std::vector<std::byte> source = filled(8, 1);
  std::vector<std::byte> destination = filled(8, 0);
  Event after, done;
  after.begin();
  done.begin();
  stream.enqueue({.destination = destination.data(),
                  .source = source.data(),
                  .bytes = 8,
                  .after = &after,
                  .done = &done});
  EXPECT_FALSE(done.done());
  EXPECT_EQ(stream.copied_bytes(), 0u);
  after.complete_one();
  done.wait();
  EXPECT_EQ(destination, source);
}

TEST(CopyStream, ASmallCopyWithNothingBeforeItIsOverWhenItWasAskedFor) {
  CopyStream stream;
  const std::vector<std::byte> source = filled(kCopiedByCaller, 1);
  std::vector<std::byte> destination = filled(kCopiedByCaller, 0);
  Event done;
  done.begin();
  stream.enqueue(
      {.destination = destination.data(), .source = source.data(), .bytes = source.size(), .done = &done});
  EXPECT_TRUE(done.done());
  EXPECT_EQ(destination, source);
}

TEST(CopyStream, NoCopyIsTheCallersWhereTheOptionsForbidIt) {
  CopyStream stream({.caller_makes_small_copies = false});
  std::thread::id copied_by;
  struct Observer final : CopyObserver {
    explicit Observer(std::thread::id& by) : by_(by) {}
    uint64_t now_ns() const noexcept override { return 0; }
    void copied(const CopyNote&, uint64_t, uint64_t) noexcept override { by_ = std::this_thread::get_id(); }
    std::thread::id& by_;
  } observer(copied_by);
  const std::vector<std::byte> source = filled(8, 1);
  std::vector<std::byte> destination = filled(8, 0);
  Event done;
  done.begin();
  stream.enqueue({.destination = destination.data(),
                  .source = source.data(),
                  .bytes = 8,
                  .done = &done,
                  .note = {.observer = &observer}});
  done.wait();
  EXPECT_NE(copied_by, std::thread::id());
  EXPECT_NE(copied_by, std::this_thread::get_id());
}

TEST(CopyStream, ASmallCopyOvertakesNothing) {
  CopyStream stream;
  const std::vector<std::byte> first = filled(8, 1), second = filled(8, 2);
  std::vector<std::byte> destination = filled(8, 0);
  Event after, first_done, second_done;
  after.begin();
  first_done.begin();
  second_done.begin();
  stream.enqueue({.destination = destination.data(),
                  .source = first.data(),
                  .bytes = 8,
                  .after = &after,
                  .done = &first_done});
  stream.enqueue(
      {.destination = destination.data(), .source = second.data(), .bytes = 8, .done = &second_done});
  EXPECT_FALSE(second_done.done());
  after.complete_one();
  first_done.wait();
  second_done.wait();
  EXPECT_EQ(destination, second);
}

TEST(CopyStream, TasksOfSeveralThreadsRunOneAtATime) {
  CopyStream stream;
  // Two at a time could leave a mixture, and are a race that the thread sanitizer sees.
  constexpr unsigned kRounds = 500;
  const std::vector<std::byte> ones = filled(4096, 1), twos = filled(4096, 2);
  std::vector<std::byte> destination = filled(4096, 0);
  const auto produce = [&](const std::vector<std::byte>& source) {
    for (unsigned i = 0; i < kRounds; ++i) {
      Event done;
      done.begin();
      stream.enqueue(
          {.destination = destination.data(), .source = source.data(), .bytes = 4096, .done = &done});
      done.wait();
    }
  };
  std::thread other([&] { produce(ones); });
  produce(twos);
  other.join();
  EXPECT_TRUE(destination == ones || destination == twos);
  EXPECT_EQ(stream.copied_bytes(), 2 * kRounds * 4096u);
}

TEST(CopyStream, SkipsTheCopyAndPassesOnTheFailureOfWhatItWaitedFor) {
  CopyStream stream;
  const std::vector<std::byte> source = filled(8, 1);
  std::vector<std::byte> destination = filled(8, 0);
  Event after, done, next;
  after.begin();
  done.begin();
  next.begin();
  std::atomic<uint32_t> in_flight = 1;
  after.complete_one(failure("the drive is gone"));
  stream.enqueue({.destination = destination.data(),
                  .source = source.data(),
                  .bytes = 8,
                  .after = &after,
                  .done = &done,
                  .in_flight = &in_flight});
  stream.enqueue({.destination = destination.data() + 4, .source = source.data(), .bytes = 4, .done = &next});
  done.wait_done();
  EXPECT_TRUE(done.failed());
  EXPECT_THROW(done.wait(), std::runtime_error);
  EXPECT_EQ(in_flight.load(), 0u);
  next.wait();  // the stream goes on
  EXPECT_EQ(destination[0], std::byte{0});
  EXPECT_EQ(destination[4], std::byte{1});
  EXPECT_EQ(stream.copied_bytes(), 4u);
}

TEST(CopyStream, LowersTheCounterOfTheTaskBeforeItCompletesTheEvent) {
  CopyStream stream;
  const std::vector<std::byte> source = filled(4096, 1);
  std::vector<std::byte> destination = filled(4096, 0);
  std::atomic<uint32_t> in_flight = 0;
  for (int i = 0; i < 500; ++i) {
    Event done;
    done.begin();
    in_flight.fetch_add(1);
    stream.enqueue({.destination = destination.data(),
                    .source = source.data(),
                    .bytes = 4096,
                    .done = &done,
                    .in_flight = &in_flight});
    done.wait_done();
    ASSERT_EQ(in_flight.load(), 0u);
    ASSERT_EQ(stream.copied_bytes(), 4096u * static_cast<unsigned>(i + 1));
  }
}

TEST(CopyStream, FinishesWhatIsQueuedBeforeItGoes) {
  const std::vector<std::byte> source = filled(64, 3);
  std::vector<std::byte> destination = filled(64 * 50, 0);
  std::deque<Event> done(50);
  {
    CopyStream stream;
    for (size_t i = 0; i < done.size(); ++i) {
      done[i].begin();
      stream.enqueue({.destination = destination.data() + 64 * i,
                      .source = source.data(),
                      .bytes = 64,
                      .done = &done[i]});
    }
  }
  for (const Event& event : done) EXPECT_TRUE(event.done());
  EXPECT_EQ(destination, filled(64 * 50, 3));
}

TEST(CopyStream, BlocksWhileItsQueueIsFull) {
  CopyStream stream({.queue_depth = 2});
  std::array<std::byte, 8> memory{}, source{};
  Event gate;
  gate.begin();
  std::deque<Event> done(5);
  for (Event& event : done) event.begin();
  std::atomic<int> accepted = 0;
  std::thread producer([&] {
    for (Event& event : done) {
      stream.enqueue({.destination = memory.data(),
                      .source = source.data(),
                      .bytes = 8,
                      .after = &gate,
                      .done = &event});
      accepted.fetch_add(1);
    }
  });
  // One runs and waits for the gate, two are queued; the fourth cannot be accepted before the gate opens.
  while (accepted.load() < 3) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_EQ(accepted.load(), 3);
  gate.complete_one();
  producer.join();
  for (Event& event : done) event.wait();
}

TEST(CopyStream, TakesTasksFromSeveralThreads) {
  constexpr int kThreads = 4, kTasks = 300;
  CopyStream stream({.queue_depth = 8});
  std::vector<std::vector<uint32_t>> sources(kThreads), destinations(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    sources[t].resize(kTasks);
    destinations[t].resize(kTasks);
    threads.emplace_back([&, t] {
      std::deque<Event> done(kTasks);
      for (int i = 0; i < kTasks; ++i) {
        sources[t][i] = static_cast<uint32_t>(t * 1000 + i);
        done[i].begin();
        stream.enqueue({.destination = reinterpret_cast<std::byte*>(&destinations[t][i]),
                        .source = reinterpret_cast<const std::byte*>(&sources[t][i]),
                        .bytes = sizeof(uint32_t),
                        .done = &done[i]});
      }
      for (Event& event : done) event.wait();
      EXPECT_EQ(destinations[t], sources[t]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stream.copied_bytes(), kThreads * kTasks * sizeof(uint32_t));
}

TEST(CopyStream, TakesAtLeastAsLongAsTheLinkItPlays) {
  CopyStream stream({.link_bytes_per_second = 1'000'000});
  const std::vector<std::byte> source = filled(10'000, 1);
  std::vector<std::byte> destination = filled(10'000, 0);
  std::array<Event, 3> done;
  const auto start = std::chrono::steady_clock::now();
  for (Event& event : done) {
    event.begin();
    stream.enqueue(
        {.destination = destination.data(), .source = source.data(), .bytes = 10'000, .done = &event});
  }
  for (Event& event : done) event.wait();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
}

TEST(CopyStream, IsBusyWhileItCopiesAndNotWhileItWaits) {
  constexpr uint64_t kBytes = 1000;
  CopyStream stream({.link_bytes_per_second = 1'000'000});  // a millisecond each
  const std::vector<std::byte> source = filled(kBytes, 7);
  std::vector<std::byte> destination = filled(kBytes, 0);
  Event before, done;
  before.begin();
  done.begin();
  stream.enqueue({.destination = destination.data(),
                  .source = source.data(),
                  .bytes = kBytes,
                  .after = &before,
                  .done = &done});
  EXPECT_EQ(stream.busy_ns(), 0u);
  before.complete_one();
  done.wait();
  EXPECT_GE(stream.busy_ns(), 1'000'000u);
}

TEST(CopyStream, AllocatesNothingPerTask) {
  CopyStream stream;
  std::array<std::byte, 64> memory{}, source{};
  std::array<Event, 100> done;
  const uint64_t before = testing::allocations_of_this_thread();
  for (Event& event : done) {
    event.begin();
    stream.enqueue({.destination = memory.data(), .source = source.data(), .bytes = 64, .done = &event});
  }
  for (Event& event : done) event.wait();
  EXPECT_EQ(testing::allocations_of_this_thread(), before);
}

TEST(CopyStreamDeathTest, WantsAnEventThatWasBegun) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::array<std::byte, 8> memory{}, source{};
  EXPECT_DEATH(
      {
        CopyStream stream;
        Event done;
        stream.enqueue({.destination = memory.data(), .source = source.data(), .bytes = 8, .done = &done});
      },
      "a copy completes an event that was begun");
}

}  // namespace
}  // namespace terrace::copy_stream_test
