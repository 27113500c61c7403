#include <terrace/reference/rank_setup.h>

#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/comm/operations/dry_communicator.h>

#include "support/expect_error.h"

namespace terrace {
namespace {

// Two ranks on host a, and three on b, which came in between.
const std::vector<RankPlace>& places() {
  static const std::vector<RankPlace> list = {
      {0, 0, 0, "a", 1}, {1, 1, 0, "b", 1}, {2, 1, 1, "b", 2}, {3, 0, 1, "a", 2}, {4, 1, 2, "b", 3}};
  return list;
}

TEST(RankSetup, GivesEveryRankOfAHostAGpuOfItsOwn) {
  const std::vector<uint32_t> gpus = {0, 0, 1, 1, 2};
  for (uint32_t r = 0; r < gpus.size(); ++r) {
    const DryCommunicator rank(r, places());
    EXPECT_EQ(gpu_of_rank(rank, 3), gpus[r]) << r;
  }
}

// No rank goes round to the first GPU again, and all ranks of the host say so.
TEST(RankSetup, RefusesMoreRanksOnAHostThanGpus) {
  const DryCommunicator first(0, places()), second(1, places()), third(4, places());
  EXPECT_EQ(gpu_of_rank(first, 2), 0u);
  for (const DryCommunicator* rank : {&second, &third}) {
    testing::expect_error(
        ErrorKind::config,
        {"cannot train with 3 ranks on the GPUs of", "host b", "sees 2", "CUDA_VISIBLE_DEVICES"},
        [&] { gpu_of_rank(*rank, 2); });
  }
}

}  // namespace
}  // namespace terrace
