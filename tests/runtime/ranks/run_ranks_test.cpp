// Ranks are processes here, as in a run: they join over a socket, fail in all the ways there are, and what
// the user is told of it is what the test reads.
#include <terrace/runtime/ranks/run_ranks.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <thread>

#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/runtime/ranks/host_share.h>

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "support/patience.h"

namespace terrace::run_ranks_test {
namespace {

using ::testing::ElementsAre;
using testing::ForkedRanks;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::RankNotes;

constexpr int kLate = 77;

// Notes what its rank tells the user: "[ranks 1 and 2] text|".
class NotedProgram final : public RankProgram {
 public:
  NotedProgram(const RankNotes& notes, uint32_t rank) : notes_(notes), rank_(rank) {}
  Log& log() override { return log_; }
  void say(const Error& failure) override { notes_.write(rank_, std::string(failure.what()) + "|"); }
  void say_as(const std::string& ranks, const Error& failure) override {
    notes_.write(rank_, "[" + ranks + "] " + failure.what() + "|");
  }
  void end_at_once() override { _exit(kLate); }

  std::vector<MemoryLog::Line> lines() const { return log_.lines(); }

 private:
  const RankNotes& notes_;
  const uint32_t rank_;
  MemoryLog log_;
};

Environment rank_of(uint32_t rank, uint32_t ranks, const RankNotes& notes) {
  return {{"TERRACE_RANK", std::to_string(rank)},
          {"TERRACE_RANKS", std::to_string(ranks)},
          {"TERRACE_MEET", notes.place()}};
}

Error failure_of(const std::string& what, ErrorKind kind = ErrorKind::io) {
  return Error(kind, {what, "", "", ""});
}

// Every rank joins, does this, and ends with what it throws; status 1 unless it says another.
ForkedRanks run(
    uint32_t count, const RankNotes& notes, const std::function<void(RunRanks&)>& body,
    const std::function<int(uint32_t)>& status = [](uint32_t) { return 1; }) {
  return ForkedRanks(count, [&](uint32_t rank) {
    NotedProgram program(notes, rank);
    RunRanks ranks(rank_of(rank, count, notes), program);
    try {
      ranks.join({.timeout = std::chrono::duration_cast<std::chrono::seconds>(kPatience)});
      body(ranks);
    } catch (const Error& failure) {
      return ranks.end_with(failure, status(rank));
    }
    return 0;
  });
}

TEST(RunRanks, OfOneAskNobody) {
  const RankNotes notes;
  NotedProgram program(notes, 0);
  RunRanks ranks({}, program);
  ranks.join({});
  EXPECT_FALSE(ranks.are_several());
  EXPECT_EQ(ranks.communicator(), nullptr);
  ranks.agree([]() -> std::map<std::string, std::string> { throw failure_of("asked"); });
  EXPECT_EQ(ranks.on_first([] { return 5; }), 5);
  ranks.log_of_all().warning("heard");
  ASSERT_EQ(program.lines().size(), 1u);
  JobStatus status;
  ranks.watch().describe(status);
  EXPECT_EQ(status.rank_count, 1u);
  EXPECT_FALSE(ranks.watch().lost_rank());
  EXPECT_FALSE(ranks.watch().who_is_where());
  EXPECT_EQ(ranks.end_with(failure_of("the disk is full"), 3), 3);
  EXPECT_EQ(notes.of(0), "the disk is full|");
}

TEST(RunRanks, KnowEachOtherAndAgree) {
  const RankNotes notes;
  const ForkedRanks ranks = run(3, notes, [&](RunRanks& rank) {
    rank.agree([] { return std::map<std::string, std::string>{{"the seed", "7"}}; });
    const uint32_t own = rank.identity().rank;
    const std::vector<uint32_t> all = RankVotes(rank.communicator()).of_all(own);
    notes.write(own, std::to_string(all[0]) + std::to_string(all[1]) + std::to_string(all[2]));
    notes.write(own, rank.on_first([] { return std::string(" first"); }));
    const RankSeat seat = seat_of(own, rank.communicator()->places());
    notes.write(own, " " + std::to_string(seat.local_rank) + "/" + std::to_string(seat.ranks_on_host));
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(0, 0, 0));
  EXPECT_EQ(notes.of(0), "012 first 0/3");
  EXPECT_EQ(notes.of(1), "012 1/3");
  EXPECT_EQ(notes.of(2), "012 2/3");
}

TEST(RunRanks, SayOnceWhatAllHaveToSay) {
  const RankNotes notes;
  const ForkedRanks ranks = run(3, notes, [](RunRanks& rank) {
    rank.agree([&] { return std::map<std::string, std::string>{{"the seed", rank.is_first() ? "7" : "8"}}; });
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(1, 1, 1));
  EXPECT_THAT(notes.of(0), HasSubstr("the seed"));
  EXPECT_EQ(notes.of(1), "");
  EXPECT_EQ(notes.of(2), "");
}

// Those that fail with the same are named together, by the first of them; who only misses them says nothing.
TEST(RunRanks, SayWhatSomeOfThemFailWithAndEndWithTheWorstStatus) {
  const RankNotes notes;
  const ForkedRanks ranks = run(
      4, notes,
      [](RunRanks& rank) {
        const uint32_t own = rank.identity().rank;
        if (own == 1 || own == 3) throw failure_of("the disk is full");
        const RankVotes votes(rank.communicator());
        while (true) votes.any(false);
      },
      [](uint32_t rank) { return rank == 3 ? 2 : 1; });
  EXPECT_THAT(ranks.ends(), ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(notes.of(0), "");
  EXPECT_EQ(notes.of(1), "[ranks 1 and 3] the disk is full|");
  EXPECT_EQ(notes.of(2), "");
  EXPECT_EQ(notes.of(3), "");
}

TEST(RunRanks, NameOneThatIsKilledOnce) {
  const RankNotes notes;
  const ForkedRanks ranks = run(4, notes, [](RunRanks& rank) {
    if (rank.identity().rank == 2) raise(SIGKILL);
    rank.watch().set_what_is_kept("the state is that of step 800");
    const RankVotes votes(rank.communicator());
    while (true) votes.any(false);
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(1, 1, -SIGKILL, 1));
  EXPECT_THAT(notes.of(0), HasSubstr("[] rank 2 of 4 (host "));
  EXPECT_THAT(notes.of(0), HasSubstr("the state is that of step 800|"));
  EXPECT_EQ(notes.of(1), "");
  EXPECT_EQ(notes.of(3), "");
}

TEST(RunRanks, OfADeadFirstOneAreSpokenForByTheSecond) {
  const RankNotes notes;
  const ForkedRanks ranks = run(3, notes, [](RunRanks& rank) {
    if (rank.is_first()) raise(SIGKILL);
    const RankVotes votes(rank.communicator());
    while (true) votes.any(false);
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(-SIGKILL, 1, 1));
  EXPECT_THAT(notes.of(1), HasSubstr("[] rank 0 of 3 (host "));
  EXPECT_EQ(notes.of(2), "");
}

// What it computes is lost, and nobody waits for it.
TEST(RunRanks, ThatHearOfNoDeathInTimeAreEnded) {
  const RankNotes notes;
  const ForkedRanks ranks = run(2, notes, [](RunRanks& rank) {
    if (rank.identity().rank == 1) raise(SIGKILL);
    std::this_thread::sleep_for(kPatience);
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(kLate, -SIGKILL));
  EXPECT_THAT(notes.of(0), HasSubstr("[] rank 1 of 2 (host "));
}

TEST(RunRanks, ThatDoNotComeAreNamed) {
  const RankNotes notes;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    if (rank == 1) return 0;
    NotedProgram program(notes, rank);
    RunRanks alone(rank_of(0, 2, notes), program);
    try {
      alone.join({.timeout = std::chrono::seconds(1)});
    } catch (const Error& failure) {
      return alone.end_with(failure, 4);
    }
    return 0;
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(4, 0));
  EXPECT_THAT(notes.of(0), HasSubstr("rank 1"));
}

TEST(RunRanks, AreAsManyAsTheConfigurationIsFor) {
  const RankNotes notes;
  NotedProgram program(notes, 0);
  const RunRanks ranks({}, program);
  TrainConfig config;
  config.batch.ranks = 2;
  testing::expect_error(ErrorKind::config, {"terrace.ranks", "1 process was"},
                        [&] { ranks.apply_to(config); });
  config.batch.ranks = 1;
  ranks.apply_to(config);
  EXPECT_EQ(config.placement.tier_name, TrainConfig().placement.tier_name);
}

TEST(RunRanks, OfLaunchersOfTheirOwnMeetAsTheyAreTold) {
  const RankNotes notes;
  NotedProgram program(notes, 0);
  RunRanks ranks(rank_of(0, 2, notes), program);
  testing::expect_error(ErrorKind::config, {"terrace.communicator mpi", "no launcher of MPI"},
                        [&] { ranks.join({.communicator = CommunicatorChoice::mpi}); });
}

}  // namespace
}  // namespace terrace::run_ranks_test
