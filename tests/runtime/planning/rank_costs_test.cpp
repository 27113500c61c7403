// What ranks cost each other, for cases that follow by hand.
#include <terrace/runtime/planning/rank_costs.h>

#include <gtest/gtest.h>

#include <vector>

#include <terrace/reference/planning/step_lines.h>

namespace terrace::rank_costs_test {
namespace {

constexpr double kMicrosecond = 1e-6;
constexpr double kChunk = 32 << 20;
constexpr GatherShape kWhole = {kChunk, kChunk};

// Eight ranks on a host, 300 GB/s and 1 us between them, 50 GB/s and 5 us for each between hosts.
RankLinks of_hosts(uint32_t ranks) {
  return {.ranks = ranks,
          .on_host = 8,
          .message_seconds = kMicrosecond,
          .bytes = 300e9,
          .network_message_seconds = 5 * kMicrosecond,
          .network_bytes = 50e9};
}

// Four ranks on a host, and nothing but messages between hosts takes time: a second each.
RankLinks of_messages(uint32_t ranks) {
  return {.ranks = ranks, .on_host = 4, .network_message_seconds = 1};
}

TEST(RankCosts, AreThoseOfDirectMessages) {
  const RankTerms few = gather_terms(of_hosts(64), kWhole, Spreading::direct);
  EXPECT_NEAR(few.host_latency, 8 * 7 * kMicrosecond, 1e-12);
  EXPECT_NEAR(few.host_bytes, kChunk * 7 / 8 / 300e9, 1e-12);
  EXPECT_NEAR(few.network_latency, 7 * 5 * kMicrosecond, 1e-12);
  EXPECT_NEAR(few.network_bytes, kChunk * 7 / 8 / (8 * 50e9), 1e-12);
  const RankTerms many = gather_terms(of_hosts(10000), kWhole, Spreading::direct);
  EXPECT_NEAR(many.host_latency, 1250 * 7 * kMicrosecond, 1e-12);
  EXPECT_NEAR(many.network_latency, 1249 * 5 * kMicrosecond, 1e-12);
}

TEST(RankCosts, GrowWithTheLogarithmOfHostsByDoubling) {
  const auto milliseconds = [](uint32_t ranks) {
    return 1e3 * gather_terms(of_hosts(ranks), kWhole, Spreading::doubling).total();
  };
  EXPECT_NEAR(milliseconds(64), 0.193, 0.0005);
  EXPECT_NEAR(milliseconds(512), 0.217, 0.0005);
  EXPECT_NEAR(milliseconds(1024), 0.223, 0.0005);
  EXPECT_NEAR(gather_terms(of_hosts(10000), kWhole, Spreading::doubling).network_latency,
              11 * 5 * kMicrosecond, 1e-12);
}

TEST(RankCosts, HaveAMessageForEveryRankWhereHostsHaveNotAsMany) {
  RankLinks links = of_messages(10);
  links.message_seconds = 100;
  links.bytes = links.network_bytes = 1;
  const RankTerms terms = gather_terms(links, {10, 10}, Spreading::direct);
  EXPECT_NEAR(terms.host_latency, 300, 1e-9);
  EXPECT_NEAR(terms.network_latency, 6, 1e-9);
  EXPECT_NEAR(terms.host_bytes, 3, 1e-9);
  EXPECT_NEAR(terms.network_bytes, 6, 1e-9);
}

// A header and a part that comes at once; or one that is announced and asked for, eight at a time.
TEST(RankCosts, WaitForWhatIsOnTheWayOnceForAllThatAreAtOnce) {
  const auto delays = [](uint32_t hosts, double part_bytes) {
    const RankLinks links = {.ranks = hosts, .network_delay = 1};
    return gather_terms(links, {0, part_bytes * hosts}, Spreading::direct).network_latency;
  };
  EXPECT_EQ(delays(1, 1000), 0);
  EXPECT_EQ(delays(2, 1000), 2);
  EXPECT_EQ(delays(100, 1e6), 2);
  EXPECT_EQ(delays(9, 1 << 20), 4);
  EXPECT_EQ(delays(10, 1 << 20), 7);
}

TEST(RankCosts, HaveCodesBetweenHostsAlone) {
  RankLinks links = of_messages(16);
  links.bytes = links.network_bytes = 1;
  const RankTerms terms = gather_terms(links, {160, 80}, Spreading::direct);
  EXPECT_NEAR(terms.host_bytes, 120, 1e-9);
  EXPECT_NEAR(terms.network_bytes, 80 * 3 / 16.0, 1e-9);
}

TEST(RankCosts, SendSumsOfGroupsBetweenHosts) {
  RankLinks links = of_messages(16);
  links.network_bytes = 1;
  const RankTerms sums =
      exchange_terms(links, {.chunk_bytes = 160, .sum_bytes = 320, .host_groups = 2}, Spreading::direct);
  EXPECT_NEAR(sums.network_latency, 2 * 3, 1e-9);
  EXPECT_NEAR(sums.network_bytes, 2 * 320 * 3 / 16.0, 1e-9);
  const RankTerms gradients = exchange_terms(links, {.chunk_bytes = 160}, Spreading::direct);
  EXPECT_NEAR(gradients.network_latency, 12, 1e-9);
  EXPECT_NEAR(gradients.network_bytes, 120, 1e-9);
}

// --- The line of work of a step ---

RankLine line_of(const RankLinks& links) {
  BatchConfig batch;
  batch.ranks = batch.micro_batches = links.ranks;
  return {links, batch};
}

constexpr RecordedEvent kGather{RecordedEvent::Kind::gather, 0, 10};
constexpr RecordedEvent kExchange{RecordedEvent::Kind::exchange, 0, 10};

TEST(RankLine, HasHeadersCrossWhileThePartsBeforeThemDo) {
  const std::vector<RecordedEvent> events = {kGather, kGather, kExchange};
  RankLine line = line_of({.ranks = 2, .network_delay = 1});
  EXPECT_NEAR(line.gather(events, 0, 0), 2, 1e-9);
  EXPECT_NEAR(line.exchange(events, 2, 0), 2, 1e-9);  // another kind goes beside it
  EXPECT_NEAR(line.gather(events, 1, 0), 3, 1e-9);
  const RankUse use = line.take_use();
  EXPECT_NEAR(use.seconds.network_latency, 6, 1e-9);
  EXPECT_EQ(use.gathers, 2u);
  EXPECT_EQ(use.exchanges, 1u);
  EXPECT_EQ(line.take_use().gathers, 0u);
}

TEST(RankLine, SharesTheNetworkBetweenAllThatCrosses) {
  const std::vector<RecordedEvent> events = {kGather, kExchange};
  RankLine line = line_of({.ranks = 2, .network_bytes = 1, .network_delay = 1});
  EXPECT_NEAR(line.gather(events, 0, 0), 1 + 10 + 1, 1e-9);
  EXPECT_NEAR(line.exchange(events, 1, 0), 1 + 10 + 10 + 1, 1e-9);
}

}  // namespace
}  // namespace terrace::rank_costs_test
