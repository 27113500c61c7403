// Ranks over C: processes that join, agree, vote, find a dead one and end together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <terrace_run.h>

#include "capi/capi_rig.h"
#include "capi/rank_program.h"
#include "support/forked_ranks.h"
#include "support/patience.h"

namespace terrace::ranks_together_test {
namespace {

using capi::expect_kind;
using capi::is_well;
using capi::kUnexpected;
using Program = capi::RankProgram;
using ::testing::ElementsAre;
using testing::ForkedRanks;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::RankNotes;

TEST(CRanksTogether, ShareTheirWordsAndKnowTheirPlaces) {
  const RankNotes notes;
  const ForkedRanks ranks(3, [&](uint32_t rank) {
    Program program(notes, rank, 3);
    terrace_ranks_facts facts = TERRACE_INIT(terrace_ranks_facts);
    program.take(terrace_ranks_get(program.ranks, &facts));
    program.note(std::to_string(facts.rank) + "/" + std::to_string(facts.count) + " " +
                 std::to_string(facts.local_rank) + "/" + std::to_string(facts.local_count) + ":");
    const char* names[] = {"the seed"};
    const char* values[] = {"7"};
    program.take(terrace_ranks_agree(program.ranks, names, values, 1));
    std::vector<uint64_t> all(3);
    program.vote(rank * rank, all);
    for (const uint64_t one : all) program.note(" " + std::to_string(one));
    program.take(terrace_ranks_check(program.ranks));
    return program.end();
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(0, 0, 0));
  EXPECT_EQ(notes.of(0), "0/3 0/3: 0 1 4");
  EXPECT_EQ(notes.of(2), "2/3 2/3: 0 1 4");
}

TEST(CRanksTogether, AreRefusedTogetherWhereAValueDiffers) {
  const RankNotes notes;
  const ForkedRanks ranks(3, [&](uint32_t rank) {
    Program program(notes, rank, 3);
    const char* names[] = {"the model", "the seed"};
    const char* values[] = {"gpt2", rank == 1 ? "8" : "7"};
    program.take(terrace_ranks_agree(program.ranks, names, values, 2));
    if (program.kind() != TERRACE_CONFIG) return kUnexpected;
    return program.end(2);
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(2, 2, 2));
  EXPECT_THAT(notes.of(0), HasSubstr("the seed"));
  EXPECT_THAT(notes.of(0), ::testing::Not(HasSubstr("the model")));
  EXPECT_EQ(notes.of(1), "");
  EXPECT_EQ(notes.of(2), "");
}

TEST(CRanksTogether, NameOneThatIsKilled) {
  const RankNotes notes;
  const ForkedRanks ranks(4, [&](uint32_t rank) {
    Program program(notes, rank, 4);
    std::vector<uint64_t> all(4);
    for (uint64_t step = 1;; ++step) {
      program.take(terrace_ranks_step(program.ranks, step, "the forward pass"));
      program.take(terrace_ranks_kept(program.ranks, "the state is that of step 2"));
      if (rank == 2 && step == 3) raise(SIGKILL);
      if (!program.vote(step, all)) break;
    }
    if (program.kind() != TERRACE_PEER) return kUnexpected;
    program.note(program.failure() + "|");
    return program.end(5);
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(5, 5, -SIGKILL, 5));
  for (const uint32_t rank : {0u, 1u, 3u}) {
    EXPECT_THAT(notes.of(rank), HasSubstr("rank 2 of 4 (host "));
    EXPECT_THAT(notes.of(rank), HasSubstr("died in step 3"));
    EXPECT_THAT(notes.of(rank), HasSubstr("the state is that of step 2"));
  }
  // The first one says it, and no other.
  const auto lines = [&](uint32_t rank) {
    const std::string text = notes.of(rank);
    return std::count(text.begin(), text.end(), '|');
  };
  EXPECT_EQ(lines(0), 2);
  EXPECT_EQ(lines(1), 1);
  EXPECT_EQ(lines(3), 1);
}

TEST(CRanksTogether, SeeADeathWithoutAskingTheOthers) {
  const RankNotes notes;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    Program program(notes, rank, 2);
    if (rank == 1) raise(SIGKILL);
    const bool seen = testing::comes_true([&] { return !program.take(terrace_ranks_check(program.ranks)); });
    return seen && program.kind() == TERRACE_PEER ? program.end(6) : kUnexpected;
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(6, -SIGKILL));
}

TEST(CRanksTogether, ThatComputeOnAreEndedASecondAfterADeath) {
  const RankNotes notes;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    Program program(notes, rank, 2);
    if (rank == 1) raise(SIGKILL);
    std::this_thread::sleep_for(kPatience);
    return kUnexpected;
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(1, -SIGKILL));
  EXPECT_THAT(notes.of(0), HasSubstr("rank 1 of 2 (host "));
}

TEST(CRanksTogether, ThatComputeOnAreEndedASecondAfterAFailure) {
  const RankNotes notes;
  const ForkedRanks ranks(3, [&](uint32_t rank) {
    Program program(notes, rank, 3);
    if (rank == 1) {
      program.fail_with("the disk is full");
      return program.end(4);
    }
    std::this_thread::sleep_for(kPatience);
    return kUnexpected;
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(1, 4, 1));
  EXPECT_THAT(notes.of(0), HasSubstr("rank 1 of 3 (host "));
  EXPECT_THAT(notes.of(2), HasSubstr("the disk is full"));
}

// Whoever knows of a death by a call ends as it likes.
TEST(CRanksTogether, ThatHaveBeenToldAreNotEnded) {
  const RankNotes notes;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    Program program(notes, rank, 2);
    if (rank == 1) raise(SIGKILL);
    std::vector<uint64_t> all(2);
    while (program.vote(0, all)) {
    }
    std::this_thread::sleep_for(std::chrono::seconds(3));  // longer than whoever computes on is given
    return program.end(7);
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(7, -SIGKILL));
}

bool gives_up_after(Program& program, uint32_t seconds) {
  terrace_patience patience = TERRACE_INIT(terrace_patience);
  patience.stall_warning_seconds = 1;
  patience.stall_abort_seconds = seconds;
  return program.take(terrace_ranks_patience(program.ranks, &patience));
}

// Who keeps the others waiting, since it computes for ever or is stopped, is named on all of them.
TEST(CRanksTogether, GiveUpAWaitForOneThatHangs) {
  for (const bool is_stopped : {false, true}) {
    const RankNotes notes;
    const ForkedRanks ranks(3, [&](uint32_t rank) {
      Program program(notes, rank, 3);
      gives_up_after(program, is_stopped ? 5 : 3);
      std::vector<uint64_t> all(3);
      program.vote(rank, all);
      program.take(terrace_ranks_step(program.ranks, 7, rank == 1 ? "the data" : "the forward pass"));
      if (rank == 1) program.note(std::to_string(getpid()) + " ");
      if (rank == 1 && is_stopped) raise(SIGSTOP);
      if (rank == 1) std::this_thread::sleep_for(kPatience);
      program.vote(rank, all);
      program.note(program.failure());
      if (rank == 2 && is_stopped) {
        const bool all_know =
            testing::comes_true([&] { return notes.of(0).find("a wait of ") != std::string::npos; });
        kill(std::stoi(notes.of(1)), SIGKILL);
        if (!all_know) return kUnexpected;
      }
      return program.end(program.kind());
    });
    EXPECT_THAT(ranks.ends(), ElementsAre(TERRACE_PEER, is_stopped ? -SIGKILL : 1, TERRACE_PEER));
    for (const uint32_t rank : {0u, 2u}) {
      EXPECT_THAT(notes.of(rank), HasSubstr("a wait of "));
      EXPECT_THAT(notes.of(rank), HasSubstr("rank 1 of 3 (host "));
      EXPECT_THAT(notes.of(rank), HasSubstr(is_stopped ? "has said nothing for " : "in step 7 at the data"));
    }
    EXPECT_THAT(notes.of(0), HasSubstr("no progress for "));
  }
}

TEST(CRanksTogether, EndWithTheWorstStatusAndSayEachReasonOnce) {
  const RankNotes notes;
  const ForkedRanks ranks(3, [&](uint32_t rank) {
    Program program(notes, rank, 3);
    std::vector<uint64_t> all(3);
    if (rank != 0) {
      program.fail_with("the disk is full");
    } else {
      while (program.vote(0, all)) {
      }
      if (program.kind() != TERRACE_PEER) return kUnexpected;
    }
    return program.end(rank == 2 ? 3 : 1);
  });
  EXPECT_THAT(ranks.ends(), ElementsAre(3, 3, 3));
  EXPECT_EQ(notes.of(0), "");
  EXPECT_EQ(notes.of(1), "[ranks 1 and 2] the disk is full|");
  EXPECT_EQ(notes.of(2), "");
}

TEST(CRanksTogether, OfOneAnswerAtOnce) {
  const RankNotes notes;
  Program program(notes, 0, 1);
  std::vector<uint64_t> all(1);
  EXPECT_TRUE(program.vote(9, all));
  EXPECT_EQ(all.front(), 9u);
  const char* where = nullptr;
  is_well(terrace_ranks_where(program.ranks, &where));
  EXPECT_STREQ(where, "");
  terrace_ranks_facts facts = TERRACE_INIT(terrace_ranks_facts);
  is_well(terrace_ranks_get(program.ranks, &facts));
  EXPECT_EQ(facts.count, 1u);
  EXPECT_STREQ(facts.launcher, "");
  program.fail_with("the disk is full");
  EXPECT_EQ(program.end(4), 4);
  EXPECT_EQ(notes.of(0), "the disk is full|");
}

TEST(CRanksTogether, RefuseWhatTheyCannotUse) {
  terrace_ranks_options options = TERRACE_INIT(terrace_ranks_options);
  terrace_ranks* ranks = nullptr;
  expect_kind(TERRACE_MISUSE, terrace_ranks_join(&options, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_ranks_join(nullptr, &ranks));
  options.rank = 1;
  expect_kind(TERRACE_CONFIG, terrace_ranks_join(&options, &ranks));
  options.rank = 0;
  options.transport = TERRACE_TRANSPORT_NCCL + 1;
  expect_kind(TERRACE_CONFIG, terrace_ranks_join(&options, &ranks));
  options.transport = TERRACE_TRANSPORT_MPI;
  options.count = 2;
  expect_kind(TERRACE_CONFIG, terrace_ranks_join(&options, &ranks));
  EXPECT_EQ(ranks, nullptr);
  expect_kind(TERRACE_MISUSE, terrace_ranks_check(nullptr));
  terrace_ranks_free(nullptr);

  const RankNotes notes;
  Program alone(notes, 0, 1);
  expect_kind(TERRACE_MISUSE, terrace_ranks_get(alone.ranks, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_ranks_agree(alone.ranks, nullptr, nullptr, 1));
  expect_kind(TERRACE_MISUSE, terrace_ranks_ballot(alone.ranks, nullptr, 8, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_ranks_kept(alone.ranks, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_ranks_where(alone.ranks, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_ranks_patience(alone.ranks, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_ranks_end(alone.ranks, nullptr, 0, 0, nullptr));
  const ForkedRanks child(1, [&](uint32_t) {
    const uint32_t kind = capi::kind_of(terrace_ranks_check(alone.ranks));
    terrace_ranks_free(alone.ranks);
    return static_cast<int>(kind);
  });
  EXPECT_THAT(child.ends(), ElementsAre(TERRACE_MISUSE));
}

TEST(CRanksTogether, NameWhoDoesNotCome) {
  const RankNotes notes;
  const std::string place = notes.place();
  terrace_ranks_options options = TERRACE_INIT(terrace_ranks_options);
  options.count = 3;
  options.place = place.c_str();
  options.timeout_seconds = 1;
  terrace_ranks* ranks = nullptr;
  terrace_error* missing = terrace_ranks_join(&options, &ranks);
  EXPECT_THAT(terrace_error_text(missing), HasSubstr("ranks 1 and 2"));
  expect_kind(TERRACE_PEER, missing);
}

}  // namespace
}  // namespace terrace::ranks_together_test
