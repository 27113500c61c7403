#include <terrace/offload/watch/step_watch.h>

#include <gtest/gtest.h>

#include <barrier>
#include <string>
#include <thread>

namespace terrace::step_watch_test {
namespace {

TEST(StepWatch, NamesTheWaitWhileItLastsAndNothingElse) {
  StepWatch watch;
  watch.set_activity("mb0/h3/forward");
  EXPECT_EQ(watch.current(), std::nullopt);
  io::Request request{};
  request.kind = io::OpKind::read;
  request.offset = 12345;
  request.bytes = 4096;
  uint64_t number = 0;
  {
    const WatchedWait wait(watch, {"parameters", "nvme -> host -> device", TimeCause::read, ChunkId{17},
                                   &request, "/x/params.tier"});
    ASSERT_TRUE(watch.current().has_value());
    number = *watch.current();
    EXPECT_EQ(watch.describe(number),
              "mb0/h3/forward waits for parameters of chunk 17 (nvme -> host -> device): reading 4.00 KiB at "
              "offset "
              "12345 of /x/params.tier");
    EXPECT_EQ(watch.describe(number + 1), std::nullopt);
  }
  EXPECT_EQ(watch.current(), std::nullopt);
  EXPECT_EQ(watch.describe(number), std::nullopt);
  const WatchedWait another(
      watch, {"gradients", "device -> host", TimeCause::device_copy, std::nullopt, nullptr, {}});
  EXPECT_NE(*watch.current(), number);
  EXPECT_EQ(watch.describe(*watch.current()), "mb0/h3/forward waits for gradients (device -> host)");
}

TEST(StepWatch, SeesNoWaitWhereNothingBlocks) {
  StepWatch watch;
  const Event done;
  wait_watched(done, watch,
               {"parameters", "host -> device", TimeCause::device_copy, ChunkId{0}, nullptr, {}});
  const WatchedWait first(watch,
                          {"gradients", "device -> host", TimeCause::device_copy, std::nullopt, nullptr, {}});
  EXPECT_EQ(*watch.current(), 1u) << "the wait for what was done was none";
}

TEST(StepWatch, SaysWhatAnUpdateAndACommitWaitForInTurn) {
  const SteadyClock clock;
  TimeAccount account(clock);
  StepWatch watch(&account);
  std::barrier together(3);
  std::jthread updates([&] {
    watch.set_update_thread();
    together.arrive_and_wait();
    const WatchedWait wait(watch, {"a slot", "host -> nvme", TimeCause::commit, ChunkId{3}, nullptr, {}});
    for (int moment = 0; moment < 4; ++moment) together.arrive_and_wait();
  });
  std::jthread commits([&] {
    watch.set_commit_thread();
    for (int moment = 0; moment < 3; ++moment) together.arrive_and_wait();
    const WatchedWait wait(watch, word_of_ranks("the end of a commit"));
    for (int moment = 0; moment < 2; ++moment) together.arrive_and_wait();
  });
  const WatchedWait wait(watch, {"an update", {}, TimeCause::update, std::nullopt, nullptr, {}});
  const uint64_t number = *watch.current();
  std::string expected = "the start waits for an update";
  EXPECT_EQ(watch.describe(number), expected);
  together.arrive_and_wait();
  together.arrive_and_wait();
  EXPECT_EQ(watch.describe(number), expected += "; the update waits for a slot of chunk 3 (host -> nvme)");
  EXPECT_FALSE(watch.is_for_ranks(number));
  together.arrive_and_wait();
  together.arrive_and_wait();
  EXPECT_EQ(watch.describe(number), expected += "; the commit waits for the end of a commit (other ranks)");
  EXPECT_TRUE(watch.is_for_ranks(number));
  together.arrive_and_wait();
  updates.join();
  commits.join();
}

}  // namespace
}  // namespace terrace::step_watch_test
