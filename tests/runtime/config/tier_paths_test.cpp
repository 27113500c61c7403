#include <terrace/runtime/config/tier_paths.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::tier_paths_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

PlacementConfig on_nvme(std::vector<fs::path> paths) {
  PlacementConfig placement;
  placement.states = Placement::nvme;
  placement.state_paths = std::move(paths);
  return placement;
}

std::vector<fs::path> paths_of(const RankSeat& seat, NvmeShare share, std::vector<fs::path> paths) {
  PlacementConfig placement = on_nvme(std::move(paths));
  take_paths_of(seat, share, placement);
  return placement.state_paths;
}

TEST(TierPaths, HaveTwoNamesForEachRankThatNoOtherSpellingMeans) {
  EXPECT_EQ(tier_name_of({}), "");
  EXPECT_EQ(tier_name_of({0, 1, true}), "terrace-second-rank-0-of-1");
  EXPECT_EQ(tier_name_of({2, 4, true}, "model"), "model-terrace-second-rank-2-of-4");
  for (const char* const store : {"", "model"}) {
    for (const TierOfRank& rank : {TierOfRank{2, 4}, TierOfRank{2, 4, true}, TierOfRank{0, 1, true}})
      EXPECT_EQ(parse_tier_name(tier_name_of(rank, store), store), rank);
  }
  for (const char* const name : {"terrace-rank-0-of-1", "terrace-rank-4-of-4", "terrace-second-rank-4-of-4",
                                 "terrace-second-rank-00-of-1", "terrace-second-rank-0-of-1 ",
                                 "terrace-second-second-rank-0-of-1", "second-rank-0-of-2"})
    EXPECT_EQ(parse_tier_name(name), std::nullopt) << name;
  EXPECT_EQ(parse_tier_name("terrace-second-rank-0-of-1", "model"), std::nullopt);
}

TEST(TierPaths, AreAllOfAHostOrThoseOfARanksPlace) {
  const std::vector<fs::path> four = {"/a", "/b", "/c", "/d"};
  const RankSeat second{.rank = 5, .local_rank = 1, .ranks_on_host = 2};
  EXPECT_EQ(paths_of(second, NvmeShare::all, four), four);
  EXPECT_THAT(paths_of(second, NvmeShare::own, four), ElementsAre("/b", "/d"));
  EXPECT_THAT(paths_of(second, NvmeShare::automatic, four), ElementsAre("/b", "/d"));
  // Of three, one rank would have more than the other.
  const std::vector<fs::path> three = {"/a", "/b", "/c"};
  EXPECT_EQ(paths_of(second, NvmeShare::automatic, three), three);
  EXPECT_THAT(paths_of(second, NvmeShare::own, three), ElementsAre("/b"));
  EXPECT_THAT(paths_of({.ranks_on_host = 2}, NvmeShare::own, three), ElementsAre("/a", "/c"));
  EXPECT_EQ(paths_of({}, NvmeShare::own, four), four);  // there is one rank
  testing::expect_error(ErrorKind::config,
                        {"an nvme path of its own", "the 4 ranks of this host", "3 of them are named",
                         "set terrace.nvme_share to all"},
                        [&] { paths_of({.ranks_on_host = 4}, NvmeShare::own, three); });
}

TEST(TierPaths, HoldThePlaceOfTheRank) {
  const RankSeat seat{.rank = 5, .local_rank = 1, .ranks_on_host = 2, .host = "b"};
  EXPECT_THAT(paths_of(seat, NvmeShare::all, {"/nvme{local_rank}/{host}/r{rank}-{rank}", "/{other}"}),
              ElementsAre("/nvme1/b/r5-5", "/{other}"));
}

// A run with another number of ranks finds what they have left.
TEST(TierPaths, OfOtherRanksAreThoseThatAreThere) {
  const ScratchFolder folder;
  const fs::path base = folder.path();
  for (const char* const name : {"nvme0/x", "nvme1/x", "nvme12/x", "nvmes/x", "nvme3/y", "host-a", "host-b"})
    fs::create_directories(base / name);
  PlacementConfig placement = on_nvme({base / "nvme{local_rank}" / "x"});
  take_paths_of({.local_rank = 1, .ranks_on_host = 2}, NvmeShare::automatic, placement);
  EXPECT_THAT(paths_of_all_ranks(placement),
              ElementsAre(base / "nvme1" / "x", base / "nvme0" / "x", base / "nvme12" / "x"));
  placement = on_nvme({base / "host-{host}"});
  take_paths_of({.host = "a"}, NvmeShare::automatic, placement);
  EXPECT_THAT(paths_of_all_ranks(placement), ElementsAre(base / "host-a", base / "host-b"));
  placement = on_nvme({base / "nvme0", base / "nvme1"});
  take_paths_of({.rank = 1, .local_rank = 1, .ranks_on_host = 2}, NvmeShare::automatic, placement);
  EXPECT_THAT(tier_paths(placement), ElementsAre(base / "nvme1"));
  EXPECT_THAT(paths_of_all_ranks(placement), ElementsAre(base / "nvme1", base / "nvme0"));
  placement = on_nvme({base / "none-{rank}"});
  take_paths_of({}, NvmeShare::automatic, placement);
  EXPECT_THAT(placement.other_paths, IsEmpty());
}

}  // namespace
}  // namespace terrace::tier_paths_test
