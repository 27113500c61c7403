#include <terrace/comm/agreement/rank_agreement.h>

#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/comm/agreement/rank_votes.h>

#include "comm/thread_world.h"
#include "support/rank_threads.h"

namespace terrace::rank_agreement_test {
namespace {

using testing::on_every_rank;

TEST(RankAgreement, LetsRanksThatAgreeGoOn) {
  ThreadWorld world({.ranks = 3});
  for (const std::string& failure : on_every_rank(world, [](Communicator& rank) {
         require_agreement(rank, {{"terrace.seed", "42"}, {"model", "gpt2"}});
         require_agreement(rank, {});
       }))
    EXPECT_EQ(failure, "");
}

TEST(RankAgreement, NamesEveryDifferenceByItsValuesAndRanksOnAll) {
  ThreadWorld world({.ranks = 4});
  const std::vector<std::string> failures = on_every_rank(world, [](Communicator& rank) {
    std::map<std::string, std::string> facts = {{"model", "gpt2"}, {"terrace.seed", "42"}};
    if (rank.rank() % 2 == 1) facts["terrace.seed"] = "43";
    if (rank.rank() == 2) facts["steps"] = "100";
    require_agreement(rank, facts);
  });
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("terrace.seed: 42 on ranks 0 and 2, 43 on ranks 1 and 3"), std::string::npos)
        << failure;
    EXPECT_NE(failure.find("steps: nothing on ranks 0, 1 and 3, 100 on rank 2"), std::string::npos)
        << failure;
    EXPECT_EQ(failure.find("model:"), std::string::npos) << failure;
  }
}

// A model of another kind lacks every parameter, and says less than its name.
TEST(RankAgreement, NamesTheFirstDifferencesWhereThereAreMany) {
  ThreadWorld world({.ranks = 2});
  const std::vector<std::string> failures = on_every_rank(world, [](Communicator& rank) {
    std::map<std::string, std::string> facts = {{"the model", rank.rank() == 0 ? "gpt" : "mlp"}};
    for (int number = 10; rank.rank() == 0 && number < 40; ++number)
      facts["parameter " + std::to_string(number)] = "fp32";
    require_agreement(rank, facts);
  });
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("the model: gpt on rank 0, mlp on rank 1\n  parameter 10: "), std::string::npos)
        << failure;
    EXPECT_NE(failure.find("parameter 28: fp32 on rank 0, nothing on rank 1\n  and 11 more"),
              std::string::npos)
        << failure;
  }
}

TEST(RankVotes, AreTheWordsOfAll) {
  ThreadWorld world({.ranks = 3});
  for (const std::string& failure : on_every_rank(world, [](Communicator& rank) {
         const RankVotes votes(&rank);
         const uint32_t mine = rank.rank();
         if (votes.of_all(mine * 10) != std::vector<uint32_t>{0, 10, 20}) throw std::runtime_error("of_all");
         if (votes.of_first(mine + 7) != 7) throw std::runtime_error("of_first");
         if (!votes.any(mine == 2) || votes.any(false)) throw std::runtime_error("any");
         if (votes.least(100 - mine) != 98) throw std::runtime_error("least");
       }))
    EXPECT_EQ(failure, "");
  const RankVotes alone(nullptr);
  EXPECT_EQ(alone.of_all(5), std::vector<int>{5});
  EXPECT_EQ(alone.of_first(6), 6);
  EXPECT_TRUE(alone.any(true));
  EXPECT_FALSE(alone.any(false));
  EXPECT_EQ(alone.least(9), 9u);
}

}  // namespace
}  // namespace terrace::rank_agreement_test
