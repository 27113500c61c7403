#include <terrace/comm/operations/dry_communicator.h>

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace terrace::dry_communicator_test {
namespace {

DryCommunicator rank_of_four(uint32_t rank) {
  return DryCommunicator(rank, {{0, 0, 0, "a", 1}, {1, 0, 1, "a", 2}, {2, 1, 0, "b", 3}, {3, 1, 1, "b", 4}});
}

TEST(DryCommunicator, CountsWhatARankWouldExchangeAndMovesNothing) {
  DryCommunicator dry = rank_of_four(2);
  Event gathered, exchanged;
  gathered.begin(), exchanged.begin();
  dry.all_gather(Lane::gather, {}, 1000, nullptr, gathered, {});
  EXPECT_TRUE(gathered.done());
  EXPECT_EQ(dry.counters()[index_of(Lane::gather)], (LaneCounters{1, 3000, 3000}));
  std::array<CommPart, 4> to{{{nullptr, 1}, {nullptr, 10, true}, {nullptr, 100}, {nullptr, 1000}}};
  std::array<CommPart, 4> from{{{nullptr, 2}, {nullptr, 20}, {nullptr, 200}, {nullptr, 2000}}};
  dry.exchange(Lane::exchange, to, from, nullptr, exchanged, {});
  EXPECT_TRUE(exchanged.done());
  EXPECT_EQ(dry.counters()[index_of(Lane::exchange)], (LaneCounters{1, 2022, 1001}));
  EXPECT_EQ(dry.places()[dry.rank()].host_name, "b");
}

TEST(DryCommunicator, AgreesWithItself) {
  DryCommunicator dry = rank_of_four(0);
  const std::array<std::byte, 2> mine{std::byte{1}, std::byte{2}};
  std::array<std::byte, 8> all{};
  dry.ballot(Lane::control, mine, all);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(all[i], mine[i % 2]);
  EXPECT_EQ(dry.counters()[index_of(Lane::control)], (LaneCounters{1, 6, 6}));
}

}  // namespace
}  // namespace terrace::dry_communicator_test
