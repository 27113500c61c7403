#include <terrace/comm/operations/poll_pauses.h>

#include <gtest/gtest.h>

namespace terrace::poll_pauses_test {
namespace {

TEST(PollPauses, GrowWhileNothingMoves) {
  PollPauses pauses;
  pauses.moved(1'000'000);
  EXPECT_EQ(pauses.next_pause_ns(1'000'000), 0u);
  EXPECT_EQ(pauses.next_pause_ns(1'019'999), 0u);
  EXPECT_EQ(pauses.next_pause_ns(1'020'000), 50'000u);
  EXPECT_EQ(pauses.next_pause_ns(1'070'000), 100'000u);
  EXPECT_EQ(pauses.next_pause_ns(1'170'000), 200'000u);
  EXPECT_EQ(pauses.next_pause_ns(1'370'000), 200'000u);
}

TEST(PollPauses, GrowWithALongWait) {
  PollPauses pauses;
  pauses.moved(0);
  for (uint64_t look = 0; look < 5; ++look) pauses.next_pause_ns(100'000);
  EXPECT_EQ(pauses.next_pause_ns(6'400'000), 200'000u);
  EXPECT_EQ(pauses.next_pause_ns(16'000'000), 500'000u);
  EXPECT_EQ(pauses.next_pause_ns(3'000'000'000), 1'000'000u);
}

TEST(PollPauses, EndWhenSomethingMoves) {
  PollPauses pauses;
  pauses.moved(0);
  EXPECT_EQ(pauses.next_pause_ns(100'000), 50'000u);
  EXPECT_EQ(pauses.next_pause_ns(200'000), 100'000u);
  pauses.moved(300'000);
  EXPECT_EQ(pauses.next_pause_ns(310'000), 0u);
  EXPECT_EQ(pauses.next_pause_ns(320'000), 50'000u);
}

}  // namespace
}  // namespace terrace::poll_pauses_test
