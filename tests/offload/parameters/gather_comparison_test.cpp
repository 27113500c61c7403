// Parameters that ranks have gathered are held against those of their owners: where one rank has got
// something else, all of them refuse it and name the chunk, the owner and the rank.
#include <terrace/offload/parameters/gather_comparison.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "offload/parameters/gather_rig.h"

namespace terrace::gather_comparison_test {
namespace {

using ::testing::HasSubstr;

struct Rank {
  explicit Rank(Communicator& communicator, uint64_t every = 2)
      : rig(communicator, with(every)), comparison(rig.run) {}
  static OffloadOptions with(uint64_t every) {
    OffloadOptions options;
    options.compare_ranks_every_steps = every;
    return options;
  }
  void use(ChunkId chunk, std::optional<uint64_t> wrong_element = std::nullopt) {
    std::vector<Bf16> parameters = rig.whole(chunk);
    if (wrong_element) parameters[*wrong_element] = to_bf16(-1);
    comparison.note_use(chunk, reinterpret_cast<const std::byte*>(parameters.data()));
  }
  void gather_all() {
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c) comparison.note_gather(ChunkId{c});
  }

  GatherRig rig;
  GatherComparison comparison;
};

void on_every_rank(const std::function<void(Communicator&)>& body) {
  ThreadWorld world({.ranks = 3});
  for (const std::string& failure : testing::on_every_rank(world, body)) EXPECT_EQ(failure, "");
}

TEST(GatherComparison, AcceptsWhatAllRanksHave) {
  on_every_rank([](Communicator& communicator) {
    Rank rank(communicator);
    rank.gather_all();
    rank.comparison.begin_step(2);
    for (uint32_t c = 0; c < HomesRig::kChunks; ++c) rank.use(ChunkId{c});
    rank.comparison.compare(2);
    EXPECT_GT(communicator.counters()[index_of(Lane::control)].operations, 0u);
  });
}

TEST(GatherComparison, RefusesWhatOneRankHasOtherwiseAndNamesIt) {
  on_every_rank([](Communicator& communicator) {
    Rank rank(communicator);
    rank.gather_all();
    rank.comparison.begin_step(4);
    rank.use(ChunkId{0});
    const bool has_got_it_wrong = communicator.rank() == 2;
    rank.use(ChunkId{1}, has_got_it_wrong ? std::optional(kTileElements + 7) : std::nullopt);
    const Error error = error_of([&] { rank.comparison.compare(41); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    EXPECT_THAT(error.what(), HasSubstr("in step 41"));
    EXPECT_THAT(error.what(), HasSubstr("chunk 1 (w to w)"));
    EXPECT_THAT(error.what(), HasSubstr("what rank 2 got of the share of rank 1"));
  });
}

TEST(GatherComparison, LooksOnlyAtTheFirstUseBehindAGather) {
  on_every_rank([](Communicator& communicator) {
    Rank rank(communicator);
    const bool differs = communicator.rank() == 1;
    rank.comparison.begin_step(2);
    rank.use(ChunkId{1}, differs ? std::optional<uint64_t>(0) : std::nullopt);  // not gathered yet
    rank.comparison.note_gather(ChunkId{1});
    rank.use(ChunkId{1});
    rank.use(ChunkId{1}, differs ? std::optional<uint64_t>(0) : std::nullopt);
    rank.comparison.compare(2);
    // Gathered in a step that is not compared, and used first in the next one, which is.
    rank.comparison.begin_step(3);
    rank.comparison.note_gather(ChunkId{2});
    rank.comparison.compare(3);
    rank.comparison.begin_step(4);
    rank.use(ChunkId{2}, differs ? std::optional<uint64_t>(0) : std::nullopt);
    EXPECT_EQ(error_of([&] { rank.comparison.compare(4); }).kind(), ErrorKind::corrupt);
  });
}

// Nothing is asked of the other ranks then, which do not call.
TEST(GatherComparison, AsksNobodyInOtherStepsAndWhereItIsNotWantedOrNotPossible) {
  ThreadWorld world({.ranks = 2});
  for (const uint64_t every : {uint64_t{2}, uint64_t{0}}) {
    Rank rank(world.rank(0), every);
    for (const uint64_t step : {1, 3}) {
      rank.gather_all();
      rank.comparison.begin_step(step);
      rank.use(ChunkId{0});
      rank.comparison.compare(step);
    }
  }
  GatherRig dry(world.rank(0), Rank::with(1));
  dry.wishes.dry = true;
  GatherComparison comparison(dry.run);
  comparison.note_gather(ChunkId{0});
  comparison.begin_step(1);
  comparison.note_use(ChunkId{0}, nullptr);
  comparison.compare(1);
  EXPECT_EQ(world.rank(0).counters()[index_of(Lane::control)].operations, 0u);
}

}  // namespace
}  // namespace terrace::gather_comparison_test
