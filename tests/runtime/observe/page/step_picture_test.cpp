// A step as a page shows it, of events written by hand.
#include <terrace/runtime/observe/page/step_picture.h>

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/runtime/observe/page/picture_taker.h>

namespace terrace::step_picture_test {
namespace {

constexpr uint64_t kBeginNs = 1000;
constexpr uint64_t kPartNs = 100;
constexpr uint64_t kEndNs = kBeginNs + StepPicture::kParts * kPartNs;

// From one part of the step to another.
TraceEvent event(TraceKind kind, size_t from_part, size_t to_part) {
  TraceEvent event;
  event.kind = kind;
  event.step = 3;
  event.begin_ns = kBeginNs + from_part * kPartNs;
  event.end_ns = kBeginNs + to_part * kPartNs;
  return event;
}
TraceEvent transfer(TraceLink link, TransferRole role, uint32_t chunk, size_t from_part, size_t to_part) {
  TraceEvent moved = event(TraceKind::transfer, from_part, to_part);
  moved.link = link;
  moved.role = role;
  moved.chunk = chunk;
  moved.bytes = 1000;
  return moved;
}
TraceEvent slots(TraceKind kind, size_t part, uint32_t chunk, TransferRole role,
                 std::array<uint32_t, 3> counts) {
  TraceEvent moment = event(kind, part, part);
  moment.chunk = chunk;
  moment.role = role;
  moment.counts = counts;
  return moment;
}
TraceEvent use(UseKind kind, size_t from_part, size_t to_part) {
  TraceEvent computed = event(TraceKind::use, from_part, to_part);
  computed.use = kind;
  return computed;
}

std::vector<TraceEvent> sample_events() {
  TraceEvent update = event(TraceKind::update, 200, 210);
  update.chunk = 1;
  TraceEvent ring = event(TraceKind::gauge, 100, 100);
  ring.gauge = TraceGauge::ring_slots;
  ring.id = 5;
  TraceEvent ring_again = event(TraceKind::gauge, 101, 101);
  ring_again.gauge = TraceGauge::ring_slots;
  ring_again.id = 2;
  return {event(TraceKind::step, 0, StepPicture::kParts),
          transfer(TraceLink::h2d, TransferRole::param, 0, 10, 20),
          slots(TraceKind::place, 20, 0, TransferRole::param, {1, 0, 0}),
          slots(TraceKind::place, 40, 0, TransferRole::grad, {1, 1, 0}),
          slots(TraceKind::leave, 50, 0, TransferRole::param, {0, 1, 0}),
          transfer(TraceLink::d2h, TransferRole::grad, 0, 55, 60),
          slots(TraceKind::leave, 60, 0, TransferRole::grad, {0, 0, 0}),
          transfer(TraceLink::nvme_read, TransferRole::state, 1, 190, 200),
          update,
          transfer(TraceLink::nvme_write, TransferRole::state, 1, 210, 220),
          ring,
          ring_again,
          use(UseKind::forward, 20, 30),
          use(UseKind::forward, 30, 38),
          use(UseKind::backward, 40, 60)};
}

TraceFacts facts(uint32_t chunk_count) {
  TraceFacts facts;
  facts.chunk_count = chunk_count;
  facts.device_slot_count = 2;
  facts.device_slot_bytes = 4096;
  return facts;
}

ChunkPresence at(const StepPicture& picture, size_t row, size_t part) {
  return picture.rows.at(row).at(part);
}

TEST(StepPicture, FollowsAChunkThroughTheStep) {
  const std::optional<StepPicture> picture = make_step_picture(sample_events(), facts(2), 3);
  ASSERT_TRUE(picture);
  EXPECT_EQ(picture->length_ns, kEndNs - kBeginNs);
  EXPECT_EQ(picture->chunks_per_row, 1u);
  EXPECT_EQ(at(*picture, 0, 9), ChunkPresence::below);
  EXPECT_EQ(at(*picture, 0, 10), ChunkPresence::coming);
  EXPECT_EQ(at(*picture, 0, 20), ChunkPresence::parameters);
  EXPECT_EQ(at(*picture, 0, 40), ChunkPresence::gradients);
  EXPECT_EQ(at(*picture, 0, 59), ChunkPresence::gradient_leaves);
  EXPECT_EQ(at(*picture, 0, 60), ChunkPresence::below);
  EXPECT_EQ(at(*picture, 1, 190), ChunkPresence::state_comes);
  EXPECT_EQ(at(*picture, 1, 205), ChunkPresence::updated);
  EXPECT_EQ(at(*picture, 1, 219), ChunkPresence::state_leaves);
}

TEST(StepPicture, HasTiersAtTheirFullestAndLinksByHowMuchTheyWereBusy) {
  const std::optional<StepPicture> picture = make_step_picture(sample_events(), facts(2), 3);
  ASSERT_TRUE(picture);
  EXPECT_EQ(picture->device[39].param_slots, 1u);
  EXPECT_EQ(picture->device[45].grad_slots, 1u);
  // The part in which the parameters leave began with both.
  EXPECT_EQ(picture->device[50].param_slots + picture->device[50].grad_slots, 2u);
  EXPECT_EQ(picture->device[51].param_slots, 0u);
  EXPECT_EQ(picture->ring_slots[99], 0u);
  EXPECT_EQ(picture->ring_slots[100], 5u);
  EXPECT_EQ(picture->ring_slots[101], 5u);
  EXPECT_EQ(picture->ring_slots[102], 2u);
  const auto h2d = static_cast<size_t>(TraceLink::h2d);
  EXPECT_EQ(picture->busy_ns[h2d], 10 * kPartNs);
  EXPECT_EQ(picture->bytes[h2d], 1000u);
  EXPECT_DOUBLE_EQ(std::accumulate(picture->busy_shares[h2d].begin(), picture->busy_shares[h2d].end(), 0.0),
                   10);
}

TEST(StepPicture, JoinsUsesOfOneKindToPhases) {
  const std::optional<StepPicture> picture = make_step_picture(sample_events(), facts(2), 3);
  ASSERT_TRUE(picture);
  ASSERT_EQ(picture->phases.size(), 3u);
  EXPECT_EQ(picture->phases[0].name, "forward");
  EXPECT_EQ(picture->phases[0].end_ns, 38 * kPartNs);
  EXPECT_EQ(picture->phases[1].name, "backward");
  EXPECT_EQ(picture->phases[1].begin_ns, 40 * kPartNs);
  EXPECT_EQ(picture->phases[2].name, "update");
  EXPECT_EQ(picture->phases[2].begin_ns, 200 * kPartNs);
}

// Ten thousand chunks: neighbours share a row, and a cell is what a quarter of them does, or most of them.
TEST(StepPicture, IsAsLargeForAnyNumberOfChunks) {
  std::vector<TraceEvent> events = {event(TraceKind::step, 0, StepPicture::kParts)};
  for (uint32_t chunk = 0; chunk < 10'000; ++chunk) {
    events.push_back(slots(TraceKind::place, 0, chunk, TransferRole::param, {chunk + 1, 0, 0}));
    if (chunk % 50 < 13)
      events.push_back(transfer(TraceLink::nvme_read, TransferRole::state, chunk, 100, 110));
    if (chunk % 50 < 12)
      events.push_back(transfer(TraceLink::nvme_read, TransferRole::state, chunk, 120, 130));
  }
  const std::optional<StepPicture> picture = make_step_picture(events, facts(10'000), 3);
  ASSERT_TRUE(picture);
  EXPECT_EQ(picture->chunks_per_row, 50u);
  ASSERT_EQ(picture->rows.size(), StepPicture::kMostRows);
  for (size_t row = 0; row < StepPicture::kMostRows; ++row) {
    ASSERT_EQ(picture->rows[row].size(), StepPicture::kParts);
    EXPECT_EQ(at(*picture, row, 105), ChunkPresence::state_comes);
    EXPECT_EQ(at(*picture, row, 125), ChunkPresence::parameters);
  }
}

TEST(StepPicture, IsNoneOfAStepThatWasNotRecordedToItsEnd) {
  std::vector<TraceEvent> events = sample_events();
  EXPECT_FALSE(make_step_picture(events, facts(2), 4));
  events.erase(events.begin());
  EXPECT_FALSE(make_step_picture(events, facts(2), 3));
  EXPECT_FALSE(make_step_picture({}, facts(0), 1));
}

TEST(StepPicture, IsTakenOfStepsThatGetRarer) {
  std::vector<uint64_t> steps;
  for (uint64_t step = 1; step <= 40; ++step) {
    if (is_pictured_step(4, step)) steps.push_back(step);
  }
  EXPECT_EQ(steps, (std::vector<uint64_t>{5, 6, 8, 12, 20, 36}));
}

// What ends in the step after it still belongs to a step.
TEST(PictureTaker, WaitsForTheEndOfTheNextStep) {
  const FakeClock clock;
  StepEvents recorder(clock, {.memory_bytes = 1 << 16});
  recorder.set_facts(facts(2));
  PictureTaker taker(2, 1000);
  const std::vector<TraceEvent> events = sample_events();
  for (size_t i = 0; i + 1 < events.size(); ++i) taker.add(events[i]);
  EXPECT_FALSE(taker.step_done(3, recorder));
  taker.add(events.back());
  const std::optional<StepPicture> picture = taker.step_done(4, recorder);
  ASSERT_TRUE(picture);
  EXPECT_EQ(picture->step, 3u);
  EXPECT_EQ(picture->phases.size(), 3u);
  EXPECT_EQ(picture->left_out, 0u);
  EXPECT_FALSE(taker.finish(recorder)) << "there is nothing of step 4";
}

TEST(PictureTaker, EndsWithTheRunAndCountsWhatItHadNoRoomFor) {
  const FakeClock clock;
  StepEvents recorder(clock, {.memory_bytes = 1 << 16});
  recorder.set_facts(facts(2));
  PictureTaker taker(2, 4);
  for (const TraceEvent& each : sample_events()) taker.add(each);
  EXPECT_FALSE(taker.step_done(3, recorder));
  const std::optional<StepPicture> picture = taker.finish(recorder);
  ASSERT_TRUE(picture);
  EXPECT_EQ(picture->left_out, sample_events().size() - 4);
}

}  // namespace
}  // namespace terrace::step_picture_test
