// The recorder of what happens in a step, under a clock that only the test moves.
#include <terrace/offload/watch/step_events.h>

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include <terrace/memory/device/copy_stream.h>

namespace terrace::step_events_test {
namespace {

constexpr uint64_t kMemory = 64 << 10;

std::vector<TraceEvent> take_all(StepEvents& events) {
  std::vector<TraceEvent> taken;
  events.take([&](const TraceEvent& event) { taken.push_back(event); });
  return taken;
}

// A clock that nobody may look at.
class ForbiddenClock final : public Clock {
 public:
  uint64_t now_ns() const override {
    ADD_FAILURE() << "the clock is looked at";
    return 0;
  }
};

TEST(StepEvents, KeepsWhatHappensInTheStepsThatWereAskedFor) {
  FakeClock clock;
  StepEvents events(clock, {.memory_bytes = kMemory, .first_step = 2, .last_step = 2});
  for (uint64_t step = 1; step <= 3; ++step) {
    events.begin_step(step);
    EXPECT_EQ(is_recording(&events), step == 2);
    clock.advance(10);
    if (is_recording(&events)) {
      TraceEvent use = events.begun(TraceKind::use);
      use.name = events.number_of("mb0/h0/forward");
      clock.advance(5);
      events.record_until_now(use);
    }
    events.end_step();
    clock.advance(1);
  }
  const std::vector<TraceEvent> taken = take_all(events);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].kind, TraceKind::use);
  EXPECT_EQ(taken[0].step, 2u);
  EXPECT_EQ(taken[0].begin_ns, 21u);
  EXPECT_EQ(taken[0].end_ns, 26u);
  EXPECT_EQ(events.name(taken[0].name), "mb0/h0/forward");
  EXPECT_EQ(taken[1].kind, TraceKind::step);
  EXPECT_EQ(taken[1].begin_ns, 11u);
  EXPECT_EQ(taken[1].end_ns, 26u);
  EXPECT_EQ(events.left_out(), 0u);
}

TEST(StepEvents, LooksAtNoClockOutsideOfTheseSteps) {
  const ForbiddenClock clock;
  StepEvents events(clock, {.memory_bytes = kMemory, .first_step = 5, .last_step = 5});
  events.begin_step(4);
  EXPECT_EQ(transfer_tag(&events, TransferRole::param, TransferReason::step, ChunkId{1}), 0u);
  EXPECT_EQ(to_device_note(&events, TransferRole::param, TransferReason::step, 1).observer, nullptr);
  events.end_step();
  EXPECT_FALSE(is_recording(nullptr));
  EXPECT_EQ(transfer_tag(nullptr, TransferRole::param, TransferReason::step, ChunkId{1}), 0u);
}

TEST(StepEvents, SaysHowManyItHadNoRoomForAndGoesOnWhenThereIsRoom) {
  FakeClock clock;
  const uint64_t one = StepEvents(clock, {.memory_bytes = 4096}).memory_bytes() /
                       StepEvents(clock, {.memory_bytes = 4096}).capacity();
  StepEvents events(clock, {.memory_bytes = 5 * one});
  ASSERT_EQ(events.capacity(), 5u);
  events.begin_step(1);
  for (uint64_t round = 0; round < 7; ++round) {
    for (uint64_t i = 0; i < 8; ++i) {
      TraceEvent event = events.begun(TraceKind::evict);
      event.id = 100 * round + i;
      events.record(event);
    }
    const std::vector<TraceEvent> taken = take_all(events);
    ASSERT_EQ(taken.size(), 5u);
    for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(taken[i].id, 100 * round + i);
    EXPECT_EQ(events.left_out(), 3 * (round + 1));
  }
}

TEST(StepEvents, LosesNothingOfManyThreadsThatRecordWhileItIsEmptied) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 20000;
  FakeClock clock;
  StepEvents events(clock, {.memory_bytes = 64 << 10});
  events.begin_step(1);
  std::array<std::vector<uint64_t>, kThreads> seen;
  const auto sink = [&](const TraceEvent& event) { seen[event.lane].push_back(event.id); };
  std::vector<std::thread> threads;
  for (uint16_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&events, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        TraceEvent event = events.begun(TraceKind::update);
        event.lane = t;
        event.id = i;
        events.record(event);
      }
    });
  }
  uint64_t taken = 0;
  while (taken + events.left_out() < kThreads * kEach) taken += events.take(sink);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(events.take(sink), 0u);
  EXPECT_GE(taken, events.capacity());
  for (const std::vector<uint64_t>& ids : seen) EXPECT_TRUE(std::ranges::is_sorted(ids));
}

TEST(StepEvents, CountsATransferInTheStepThatAskedForItWheneverItEnds) {
  FakeClock clock;
  StepEvents events(clock, {.memory_bytes = kMemory, .first_step = 3, .last_step = 4});
  events.begin_step(2);
  const uint64_t before = events.tag(TransferRole::param, TransferReason::step, 7);
  events.begin_update(true);  // ends in the next step, which is a chosen one
  const uint64_t update = events.tag(TransferRole::state, TransferReason::update, 8);
  events.end_step();
  events.begin_step(3);
  const uint64_t within = events.tag(TransferRole::grad, TransferReason::step, 4'000'000'000);
  events.end_step();
  const uint64_t between = events.tag(TransferRole::param, TransferReason::other, 9);
  events.begin_step(4);
  events.begin_update(true);
  EXPECT_EQ(events.tag(TransferRole::state, TransferReason::update, 8), 0u);

  EXPECT_EQ(before, 0u);
  EXPECT_EQ(StepEvents::event_of(update).step, 3u);
  EXPECT_EQ(StepEvents::event_of(update).reason, TransferReason::update);
  EXPECT_EQ(StepEvents::event_of(update).role, TransferRole::state);
  EXPECT_EQ(StepEvents::event_of(within).step, 3u);
  EXPECT_EQ(StepEvents::event_of(within).chunk, 4'000'000'000u);
  EXPECT_EQ(StepEvents::event_of(within).role, TransferRole::grad);
  EXPECT_EQ(StepEvents::event_of(between).step, 0u);
  EXPECT_EQ(StepEvents::event_of(between).reason, TransferReason::other);
}

TEST(StepEvents, CopiesOfUpdatedParametersBelongToTheStepThatAsksForThem) {
  FakeClock clock;
  StepEvents events(clock, {.memory_bytes = kMemory, .first_step = 3, .last_step = 4});
  const auto step_of_copy = [&] {
    const uint32_t step = StepEvents::event_of(events.updated_to_device(7).tag).step;
    EXPECT_EQ(StepEvents::event_of(events.gathered(TransferReason::update, 7).tag).step, step);
    return step;
  };
  events.begin_step(3);
  events.begin_update(true);
  EXPECT_EQ(step_of_copy(), 3u);  // counted at once, before the update is
  events.end_step();
  EXPECT_EQ(step_of_copy(), 4u);
  events.begin_step(4);
  events.begin_update(true);
  EXPECT_EQ(step_of_copy(), 4u);
  events.end_step();
  EXPECT_EQ(events.updated_to_device(7).tag, 0u);
  EXPECT_EQ(events.gathered(TransferReason::update, 7).tag, 0u);
}

TEST(StepEvents, KnowsOperationsAgainAndCountsThoseWithoutRoomForAName) {
  FakeClock clock;
  StepEvents events(clock, {.memory_bytes = kMemory});
  EXPECT_EQ(events.name(0), "");
  const uint32_t first = events.number_of("embed");
  EXPECT_NE(events.number_of("head"), first);
  EXPECT_EQ(events.number_of("embed"), first);
  uint64_t nameless = 0;
  for (int i = 0; i < 10000; ++i) nameless += events.number_of("op" + std::to_string(i)) == 0 ? 1 : 0;
  EXPECT_GT(nameless, 0u);
  EXPECT_EQ(events.nameless(), nameless);
  EXPECT_EQ(events.name(first), "embed");
}

TEST(StepEvents, KnowsEnginesAndFilesByWhatTheyWereAddedAs) {
  FakeClock clock;
  StepEvents events(clock, {.memory_bytes = kMemory});
  EXPECT_EQ(events.add_engine("step"), 0);
  EXPECT_EQ(events.add_engine("commits"), 1);
  EXPECT_EQ(events.add_engine("step"), 0);
  events.add_file(30, 1, TransferRole::grad);
  EXPECT_EQ(events.file_of(30).path, 1);
  EXPECT_EQ(events.file_of(30).role, TransferRole::grad);
  EXPECT_EQ(events.file_of(31).path, 0);
}

TEST(StepEvents, AreToldOfCopiesThatMoveBytesOverALink) {
  FakeClock clock;
  StepEvents events(clock, {.memory_bytes = kMemory});
  events.begin_step(1);
  std::array<std::byte, 64> from{}, to{};
  Event empty, copied;
  empty.begin();
  copied.begin();
  {
    CopyStream stream;
    const CopyNote note = events.to_device(TransferRole::param, TransferReason::step, 5, 77);
    stream.enqueue(
        {.destination = to.data(), .source = from.data(), .bytes = 0, .done = &empty, .note = note});
    empty.wait();
    clock.advance(100);
    stream.enqueue(
        {.destination = to.data(), .source = from.data(), .bytes = 64, .done = &copied, .note = note});
    copied.wait();  // and then it has been recorded
    const std::vector<TraceEvent> taken = take_all(events);
    ASSERT_EQ(taken.size(), 1u);
    EXPECT_EQ(taken[0].kind, TraceKind::transfer);
    EXPECT_EQ(taken[0].link, TraceLink::h2d);
    EXPECT_EQ(taken[0].role, TransferRole::param);
    EXPECT_EQ(taken[0].chunk, 5u);
    EXPECT_EQ(taken[0].id, 77u);
    EXPECT_EQ(taken[0].bytes, 64u);
    EXPECT_EQ(taken[0].begin_ns, 100u);
    EXPECT_EQ(taken[0].end_ns, 100u);
  }
}

}  // namespace
}  // namespace terrace::step_events_test
