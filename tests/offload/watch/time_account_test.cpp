// Where the step thread's time goes, under a clock that only the test moves.
#include <terrace/offload/watch/time_account.h>

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <thread>

#include <terrace/offload/transfer/device_copy.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace::time_account_test {
namespace {

TEST(TimeAccount, ChargesWhatPassesToTheInnermostCause) {
  FakeClock clock;
  clock.advance(1000);
  TimeAccount account(clock);
  clock.advance(1);
  {
    const TimeScope computing(account, TimeCause::compute);
    clock.advance(10);
    {
      const TimeScope waiting(account, TimeCause::read);
      clock.advance(100);
    }
    clock.advance(20);
  }
  clock.advance(2);
  const TimeParts parts = account.parts();
  EXPECT_EQ(parts[TimeCause::compute], 30u);
  EXPECT_EQ(parts[TimeCause::read], 100u);
  EXPECT_EQ(parts[TimeCause::overhead], 3u);
  EXPECT_EQ(parts.total_ns(), 133u);
}

TEST(TimeAccount, IsAskedInTheMidstOfAScopeWithoutLosingAnything) {
  FakeClock clock;
  TimeAccount account(clock);
  const TimeScope updating(account, TimeCause::update);
  clock.advance(7);
  const TimeParts before = account.parts();
  clock.advance(5);
  const TimeParts after = account.parts();
  EXPECT_EQ(before[TimeCause::update], 7u);
  EXPECT_EQ((after - before)[TimeCause::update], 5u);
  EXPECT_EQ((after - before).total_ns(), 5u);
}

TEST(TimeAccount, IsWhereItWasWhenAnExceptionHasLeftItsScopes) {
  FakeClock clock;
  TimeAccount account(clock);
  try {
    const TimeScope computing(account, TimeCause::compute);
    const TimeScope waiting(account, TimeCause::write);
    clock.advance(4);
    throw std::runtime_error("on purpose");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(account.current(), TimeCause::overhead);
  clock.advance(3);
  EXPECT_EQ(account.parts()[TimeCause::write], 4u);
  EXPECT_EQ(account.parts()[TimeCause::overhead], 3u);
}

// Against a list of (cause, time) that is kept beside it.
TEST(TimeAccount, AddsUpWhateverTheOrderOfScopes) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    FakeClock clock;
    TimeAccount account(clock);
    std::vector<TimeCause> open = {TimeCause::overhead};
    TimeParts expected;
    for (int step = 0; step < 2000; ++step) {
      const uint64_t ns = random() % 1000;
      clock.advance(ns);
      expected[open.back()] += ns;
      const TimeCause cause = kTimeCauses[random() % kTimeCauseCount];
      switch (random() % 3) {
        case 0:
          if (open.size() == 8) break;
          account.enter(cause);
          open.push_back(cause);
          break;
        case 1:
          if (open.size() == 1) break;
          account.leave();
          open.pop_back();
          break;
        default:
          if (open.size() == 1) break;
          account.change(cause);
          open.back() = cause;
      }
      ASSERT_EQ(account.current(), open.back());
    }
    EXPECT_EQ(account.parts(), expected) << "seed " << seed;
    EXPECT_EQ(account.parts().total_ns(), clock.now_ns()) << "seed " << seed;
  }
}

TEST(TimeAccount, HasANameAndAKeyForEveryCause) {
  for (const TimeCause cause : kTimeCauses) {
    EXPECT_FALSE(name_of(cause).empty());
    EXPECT_FALSE(key_of(cause).empty());
  }
}

WaitSubject wait_for(TimeCause cause) {
  return {"something", "somewhere", cause, std::nullopt, nullptr, {}};
}

TEST(TimeAccount, TakesTheCausesOfWaitsFromTheWatch) {
  FakeClock clock;
  TimeAccount account(clock);
  StepWatch watch(&account);
  const TimeScope computing(account, TimeCause::compute);
  for (const TimeCause cause : {TimeCause::read, TimeCause::device_copy, TimeCause::commit}) {
    clock.advance(1);
    const WatchedWait waiting(watch, wait_for(cause));
    clock.advance(10);
  }
  EXPECT_EQ(account.parts()[TimeCause::compute], 3u);
  EXPECT_EQ(account.parts()[TimeCause::read], 10u);
  EXPECT_EQ(account.parts()[TimeCause::device_copy], 10u);
  EXPECT_EQ(account.parts()[TimeCause::commit], 10u);
}

TEST(TimeAccount, DividesTheWaitsForRanksByWhatTheyAreFor) {
  FakeClock clock;
  TimeAccount account(clock);
  StepWatch watch(&account);
  const auto wait = [&](const WaitSubject& subject, uint64_t ns) {
    const WatchedWait waiting(watch, subject);
    clock.advance(ns);
  };
  const CopyName gather{"parameters", 1, CopyName::Link::gather},
      exchange{"gradients", 1, CopyName::Link::exchange};
  wait(gather.subject(), 1);
  wait(wait_for(TimeCause::read), 50);
  wait(exchange.subject(), 20);
  wait(word_of_ranks("the norm"), 300);
  wait(gather.subject(), 4000);
  EXPECT_EQ(watch.rank_wait_ns(RankWait::gather), 4001u);
  EXPECT_EQ(watch.rank_wait_ns(RankWait::exchange), 20u);
  EXPECT_EQ(watch.rank_wait_ns(RankWait::ballot), 300u);
  EXPECT_EQ(account.parts()[TimeCause::ranks], 4321u);
}

// The thread of the updates takes turns with the test, which is the step thread.
TEST(TimeAccount, ChargesAWaitForAnUpdateToWhatThatWaitsForMeanwhile) {
  FakeClock clock;
  TimeAccount account(clock);
  StepWatch watch(&account);
  const auto on_update_thread = [&](auto body) { std::thread(body).join(); };
  std::thread update([&] {
    watch.set_update_thread();
    {
      // While the step thread computes, what the update waits for is none of its time.
      const WatchedWait reading(watch, wait_for(TimeCause::read));
      clock.advance(5);
    }
  });
  update.join();
  EXPECT_EQ(account.parts()[TimeCause::read], 0u);
  EXPECT_EQ(account.parts()[TimeCause::overhead], 5u);
  const WatchedWait waiting(watch, wait_for(TimeCause::update));
  clock.advance(1);
  on_update_thread([&] {
    watch.set_update_thread();
    clock.advance(2);
    {
      const WatchedWait reading(watch, wait_for(TimeCause::read));
      clock.advance(100);
    }
    clock.advance(4);
    {
      const WatchedWait writing(watch, wait_for(TimeCause::write));
      clock.advance(1000);
    }
    clock.advance(8);
  });
  const TimeParts parts = account.parts();
  EXPECT_EQ(parts[TimeCause::update], 15u);
  EXPECT_EQ(parts[TimeCause::read], 100u);
  EXPECT_EQ(parts[TimeCause::write], 1000u);
  EXPECT_EQ(parts.total_ns(), clock.now_ns());
}

TEST(TimeAccount, ChargesAWaitThatBeginsInTheMidstOfTheUpdatesOwnToThat) {
  FakeClock clock;
  TimeAccount account(clock);
  StepWatch watch(&account);
  std::thread([&] {
    watch.set_update_thread();
    watch.begin(wait_for(TimeCause::write));
  }).join();
  {
    const WatchedWait waiting(watch, wait_for(TimeCause::update));
    clock.advance(9);
  }
  clock.advance(1);
  EXPECT_EQ(account.parts()[TimeCause::write], 9u);
  EXPECT_EQ(account.parts()[TimeCause::overhead], 1u);
}

TEST(TimeAccount, LeavesAWaitForSomethingElseAloneWhateverTheUpdateDoes) {
  FakeClock clock;
  TimeAccount account(clock);
  StepWatch watch(&account);
  const WatchedWait waiting(watch, wait_for(TimeCause::device_copy));
  std::thread([&] {
    watch.set_update_thread();
    const WatchedWait reading(watch, wait_for(TimeCause::read));
    clock.advance(6);
  }).join();
  EXPECT_EQ(account.parts()[TimeCause::device_copy], 6u);
  EXPECT_EQ(account.parts()[TimeCause::read], 0u);
}

}  // namespace
}  // namespace terrace::time_account_test
