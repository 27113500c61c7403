// What the events of a step come to, on events written by hand.
#include <terrace/offload/watch/step_view.h>

#include <gtest/gtest.h>

#include <vector>

namespace terrace::step_view_test {
namespace {

TraceEvent moment(TraceKind kind, uint64_t at_ns) {
  TraceEvent event;
  event.kind = kind;
  event.begin_ns = event.end_ns = at_ns;
  return event;
}

TraceEvent slots(TraceKind kind, uint64_t at_ns, uint32_t chunk, TransferRole role,
                 std::array<uint32_t, 3> counts) {
  TraceEvent event = moment(kind, at_ns);
  event.chunk = chunk;
  event.role = role;
  event.counts = counts;
  return event;
}

TraceEvent transfer(TraceLink link, uint64_t begin_ns, uint64_t end_ns, uint8_t path = 0) {
  TraceEvent event = moment(TraceKind::transfer, begin_ns);
  event.end_ns = end_ns;
  event.link = link;
  event.path = path;
  event.bytes = 100;
  event.step = 3;
  return event;
}

TEST(StepView, FindsTheTimeOfAStep) {
  TraceEvent step = moment(TraceKind::step, 10);
  step.end_ns = 50;
  step.step = 3;
  const std::vector<TraceEvent> events = {moment(TraceKind::evict, 11), step};
  const std::optional<StepSpan> span = span_of_step(events, 3);
  ASSERT_TRUE(span);
  EXPECT_EQ(span->begin_ns, 10u);
  EXPECT_EQ(span->end_ns, 50u);
  EXPECT_FALSE(span_of_step(events, 4));
}

TEST(StepView, FollowsTheSlotsOfTheDeviceOverTheStep) {
  const std::vector<TraceEvent> events = {
      slots(TraceKind::place, 5, 1, TransferRole::param, {1, 0, 0}),
      slots(TraceKind::place, 30, 2, TransferRole::grad, {1, 1, 0}),
      slots(TraceKind::leave, 40, 2, TransferRole::grad, {1, 0, 1}),
      slots(TraceKind::leave, 20, 9, TransferRole::param, {1, 0, 0}),  // in any order
      slots(TraceKind::place, 60, 3, TransferRole::param, {2, 0, 0}),
  };
  const std::vector<DeviceSample> samples = device_occupancy(events, {10, 50});
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[0].at_ns, 10u);  // as it was before
  EXPECT_EQ(samples[0].param_slots, 1u);
  EXPECT_EQ(samples[2].at_ns, 30u);
  EXPECT_EQ(samples[2].grad_slots, 1u);
  EXPECT_EQ(samples[3].leaving_slots, 1u);
}

TEST(StepView, CutsTheResidenceOfEveryChunkToTheStep) {
  const std::vector<TraceEvent> events = {
      slots(TraceKind::place, 5, 1, TransferRole::param, {1, 0, 0}),
      slots(TraceKind::place, 10, 1, TransferRole::param, {1, 0, 0}),  // is there when the step begins
      slots(TraceKind::leave, 25, 1, TransferRole::param, {0, 0, 0}),
      slots(TraceKind::place, 30, 1, TransferRole::param, {1, 0, 0}),
      slots(TraceKind::place, 35, 0, TransferRole::grad, {1, 1, 0}),
      slots(TraceKind::leave, 45, 0, TransferRole::grad, {1, 0, 1}),
      slots(TraceKind::leave, 70, 1, TransferRole::param, {0, 0, 0}),
  };
  const std::vector<Residence> found = residences(events, {10, 50});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].chunk, 0u);
  EXPECT_EQ(found[0].role, TransferRole::grad);
  EXPECT_EQ(found[0].begin_ns, 35u);
  EXPECT_EQ(found[0].end_ns, 45u);
  EXPECT_EQ(found[1].begin_ns, 10u);
  EXPECT_EQ(found[1].end_ns, 25u);
  EXPECT_EQ(found[2].begin_ns, 30u);
  EXPECT_EQ(found[2].end_ns, 50u);
}

TEST(StepView, CountsTheTimeOfALinkOnceHoweverManyTransfersShareIt) {
  const std::vector<TraceEvent> events = {
      transfer(TraceLink::nvme_read, 0, 20),    transfer(TraceLink::nvme_read, 15, 30, 1),
      transfer(TraceLink::nvme_read, 40, 45),   transfer(TraceLink::nvme_write, 10, 50),
      transfer(TraceLink::nvme_read, 100, 200),
  };
  const StepSpan span{10, 50};
  EXPECT_EQ(link_use(events, span, TraceLink::nvme_read).busy_ns, 25u);
  EXPECT_EQ(link_use(events, span, TraceLink::nvme_read).transfers, 3u);
  EXPECT_EQ(link_use(events, span, TraceLink::nvme_read, 1).busy_ns, 15u);
  EXPECT_EQ(link_use(events, span, TraceLink::h2d).busy_ns, 0u);
  const std::vector<double> shares = link_busy_shares(events, span, TraceLink::nvme_read, 4);
  EXPECT_EQ(shares, (std::vector<double>{1.0, 1.0, 0.0, 0.5}));
}

TEST(StepView, AddsUpTheBytesThatAreCountedInAStep) {
  std::vector<TraceEvent> events = {transfer(TraceLink::h2d, 0, 10), transfer(TraceLink::h2d, 90, 99),
                                    transfer(TraceLink::h2d, 20, 30), transfer(TraceLink::h2d, 20, 30),
                                    transfer(TraceLink::d2h, 20, 30)};
  events[1].role = TransferRole::activation;
  events[2].reason = TransferReason::other;
  events[3].step = 4;
  EXPECT_EQ(link_bytes(events, 3, TraceLink::h2d), 200u);
  EXPECT_EQ(link_bytes(events, 3, TraceLink::h2d, TransferRole::param), 100u);
  EXPECT_EQ(link_bytes(events, 3, TraceLink::d2h), 100u);
}

TEST(StepView, FollowsAGauge) {
  TraceEvent rings = moment(TraceKind::gauge, 5);
  rings.gauge = TraceGauge::ring_slots;
  rings.id = 2;
  TraceEvent later = rings;
  later.begin_ns = later.end_ns = 12;
  later.id = 3;
  TraceEvent other = later;
  other.gauge = TraceGauge::kept_records;
  const std::vector<TraceEvent> events = {rings, later, other};
  const std::vector<GaugeSample> samples = gauge_over(events, {10, 50}, TraceGauge::ring_slots);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].at_ns, 10u);
  EXPECT_EQ(samples[0].value, 2u);
  EXPECT_EQ(samples[1].value, 3u);
}

}  // namespace
}  // namespace terrace::step_view_test
