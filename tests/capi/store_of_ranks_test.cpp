// A store over ranks in processes: no bit depends on their number, and all are told what goes wrong on one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "capi/capi_rig.h"
#include "capi/rank_program.h"
#include "capi/store_on_ranks.h"
#include "support/scratch_folder.h"

namespace terrace::store_of_ranks_test {
namespace {

using capi::Arguments;
using capi::bytes_of;
using capi::Case;
using capi::case_of;
using capi::expect_kind;
using capi::kMicroBatches;
using capi::kSteps;
using capi::kUnexpected;
using capi::RankProgram;
using capi::train_alone;
using capi::Training;
using ::testing::Each;
using testing::ForkedRanks;
using ::testing::HasSubstr;
using testing::RankNotes;

std::string text_of(const Case& c) {
  return fmt::format("parameters {}{}, states {}, gradients {}, update {}, unused {}", c.parameters,
                     c.divided ? " divided" : "", c.states, c.gradients, c.update_when, c.unused);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const uint32_t parameters : {TERRACE_DEVICE, TERRACE_CPU, TERRACE_NVME}) {
    for (const uint32_t states : {TERRACE_DEVICE, TERRACE_CPU, TERRACE_NVME}) {
      Case c{.parameters = parameters, .states = states};
      c.update_when = states == TERRACE_DEVICE ? uint32_t{TERRACE_AFTER_BACKWARD} : (parameters + states) % 3;
      c.gradients = (parameters + states) % 2 == 0 ? TERRACE_HANDED_OVER : TERRACE_LEASED;
      c.unused = states == TERRACE_CPU ? TERRACE_UNUSED_SKIP : TERRACE_UNUSED_ZERO;
      c.announced = states == TERRACE_NVME;
      all.push_back(c);
      if (parameters != TERRACE_DEVICE) continue;
      c.divided = true;
      all.push_back(c);
    }
  }
  return all;
}

TEST(CStoreOfRanks, HasTheBitsOfOneRankWhereverThingsLie) {
  for (const Case& c : cases()) {
    const std::string alone = train_alone(c);
    for (const uint32_t count : {1u, 2u, 3u}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", count, text_of(c)));
      const RankNotes notes;
      const ScratchFolder folder;
      const ForkedRanks ranks(count, [&](uint32_t rank) {
        RankProgram program(notes, rank, count);
        {
          Training training(case_of(c, program, rank, count), folder.path());
          for (uint64_t step = 1; step <= kSteps; ++step) training.step(step);
          program.note(bytes_of(training.state()));
        }
        return program.end();
      });
      EXPECT_THAT(ranks.ends(), Each(0)) << notes.of(0).substr(0, 500);
      for (uint32_t rank = 0; rank < count; ++rank) EXPECT_TRUE(notes.of(rank) == alone) << rank;
    }
  }
}

// Evaluations of this rank alone, each as long as it likes.
void evaluate(RankProgram& program, terrace_store* store, uint32_t times) {
  for (uint32_t turn = 0; turn < times; ++turn) {
    program.take(terrace_begin_evaluation(store));
    for (uint32_t tensor = 0; tensor <= turn; ++tensor) {
      uint64_t lease = 0;
      program.take(terrace_lease(store, "evaluation", TERRACE_INFERENCE, &tensor, 1, &lease));
      program.take(terrace_release(store, lease));
    }
    program.take(terrace_end_evaluation(store));
  }
}

// A step that has no gradients is this rank's alone, too.
void begin_in_vain(RankProgram& program, terrace_store* store) {
  const uint32_t tensor = 0;
  uint64_t lease = 0;
  program.take(terrace_begin_step(store));
  program.take(terrace_lease(store, "in vain", TERRACE_FORWARD, &tensor, 1, &lease));
  program.take(terrace_release(store, lease));
  program.take(terrace_abandon_step(store));
}

TEST(CStoreOfRanks, HasTheBitsOfOneRankWhereRanksThatPullDoOtherThings) {
  for (Case c : cases()) {
    if (c.states == TERRACE_DEVICE && (c.parameters != TERRACE_DEVICE || c.divided)) continue;  // refused
    c.rank_exchange = TERRACE_PULLED;
    c.leaves_out = true;
    c.gradients = TERRACE_HANDED_OVER;
    c.announced = false;
    if (c.update_when == TERRACE_DURING_BACKWARD || c.parameters == TERRACE_DEVICE)
      c.update_when = TERRACE_AFTER_BACKWARD;
    const std::string alone = train_alone(c);
    for (const uint32_t count : {2u, 3u}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", count, text_of(c)));
      const RankNotes notes;
      const ScratchFolder folder;
      const ForkedRanks ranks(count, [&](uint32_t rank) {
        RankProgram program(notes, rank, count);
        {
          Training training(case_of(c, program, rank, count), folder.path());
          for (uint64_t step = 1; step <= kSteps; ++step) {
            evaluate(program, training.get(), (rank + static_cast<uint32_t>(step)) % 3);
            if (rank == 1) begin_in_vain(program, training.get());
            training.step(step);
          }
          program.note(bytes_of(training.state()));
          evaluate(program, training.get(), rank);
        }
        return program.end();
      });
      EXPECT_THAT(ranks.ends(), Each(0)) << notes.of(0).substr(0, 500);
      for (uint32_t rank = 0; rank < count; ++rank) EXPECT_TRUE(notes.of(rank) == alone) << rank;
    }
  }
}

TEST(CStoreOfRanks, GivesUpAStepOnAllThatPullOrOnNone) {
  const RankNotes notes;
  const ScratchFolder folder;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    RankProgram program(notes, rank, 2);
    Case c;
    c.rank_exchange = TERRACE_PULLED;
    c.gradients = TERRACE_HANDED_OVER;
    Training training(case_of(c, program, rank, 2), folder.path());
    const auto begin = [&] {
      program.take(terrace_begin_step(training.get()));
      training.micro_batch(1, 0);
    };
    begin();
    program.take(terrace_abandon_step(training.get()));
    training.step(1);
    begin();
    for (uint32_t m = 1; m < kMicroBatches / 2 && rank == 0; ++m) training.micro_batch(1, m);
    const terrace_update_settings settings = training.settings(2);
    terrace_error* const error =
        rank == 0 ? terrace_update(training.get(), &settings, nullptr) : terrace_abandon_step(training.get());
    program.note(terrace_error_text(error));
    expect_kind(TERRACE_PEER, error);
    training.end();
    return 0;
  });
  EXPECT_THAT(ranks.ends(), Each(0));
  EXPECT_THAT(notes.of(0), HasSubstr("\"rank 1\": it has given up the step"));
  EXPECT_THAT(notes.of(1), HasSubstr("\"rank 0\": it updates the step"));
}

TEST(CStoreOfRanks, GoesOnFromACommitOfAllOfThem) {
  Case c = capi::kOnNvme;
  c.durable = 1;
  const std::string alone = train_alone(c);
  const RankNotes notes;
  const ScratchFolder folder;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    RankProgram program(notes, rank, 2);
    Case mine = case_of(c, program, rank, 2);
    {
      Training training(mine, folder.path());
      training.step(1);
      training.step(2);
      program.take(terrace_begin_commit(training.get(), "two steps", 0));
      program.take(terrace_finish_commit(training.get(), nullptr));
    }
    mine.resume = 1;
    Training training(mine, folder.path());
    const char* text = nullptr;
    program.take(terrace_taken_up_text(training.get(), &text));
    if (text != std::string("two steps")) return kUnexpected;
    training.step(3);
    program.note(bytes_of(training.state()));
    training.end();
    return program.end();
  });
  EXPECT_THAT(ranks.ends(), Each(0));
  // The norms of the first two steps are those of the training before.
  const size_t states = alone.size() - kSteps * sizeof(float);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(notes.of(rank).substr(0, states) == alone.substr(0, states));
    EXPECT_TRUE(notes.of(rank).substr(states) == alone.substr(states + 2 * sizeof(float)));
  }
}

// A step and its commit on so many ranks, from what the ranks before have committed. Returns the state at its
// end, of the first rank.
std::string step_on(Case c, uint32_t count, uint64_t number, const std::filesystem::path& folder) {
  c.resume = number > 1 ? 1 : 0;
  const RankNotes notes;
  const ForkedRanks ranks(count, [&](uint32_t rank) {
    RankProgram program(notes, rank, count);
    {
      Training training(case_of(c, program, rank, count), folder);
      training.step(number);
      program.take(terrace_begin_commit(training.get(), fmt::format("{} steps", number).c_str(), 0));
      program.take(terrace_finish_commit(training.get(), nullptr));
      program.note(bytes_of(training.state()));
    }
    return program.end();
  });
  EXPECT_THAT(ranks.ends(), Each(0)) << notes.of(0).substr(0, 500);
  return notes.of(0);
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

TEST(CStoreOfRanks, GoesOnFromACommitOfAnyNumberOfThem) {
  for (const uint32_t unused : {TERRACE_UNUSED_ZERO, TERRACE_UNUSED_SKIP}) {
    Case c = capi::kOnNvme;
    c.durable = 1, c.unused = unused;
    const std::string alone = train_alone(c);
    const size_t states = alone.size() - kSteps * sizeof(float);
    for (const std::vector<uint32_t>& numbers :
         std::vector<std::vector<uint32_t>>{{2, 3, 1}, {1, 2, 1}, {3, 2, 3}}) {
      const ScratchFolder folder;
      std::string last;
      for (uint64_t step = 1; step <= kSteps; ++step)
        last = step_on(c, numbers[step - 1], step, folder.path());
      EXPECT_TRUE(last.substr(0, states) == alone.substr(0, states)) << numbers.back();
      EXPECT_TRUE(last.substr(states) == alone.substr(alone.size() - sizeof(float))) << numbers.back();
      EXPECT_EQ(names_in(folder.path()).size(), numbers.back());  // of those before nothing is left
    }
  }
}

// Nothing is passed over, and nothing of it goes.
TEST(CStoreOfRanks, NamesWhatIsMissingOfACommitOfOthers) {
  Case c = capi::kOnNvme;
  c.durable = 1;
  const ScratchFolder folder;
  step_on(c, 2, 1, folder.path());
  std::filesystem::remove_all(folder.path() / "terrace-rank-1-of-2");
  c.resume = 1;
  for (const uint32_t count : {1u, 3u}) {
    const RankNotes notes;
    const ForkedRanks ranks(count, [&](uint32_t rank) {
      RankProgram program(notes, rank, count);
      const Arguments arguments(case_of(c, program, rank, count), folder.path());
      uint32_t has_commit = 7;
      program.take(terrace_has_commit(&arguments.options, &has_commit));
      if (has_commit != 1) return kUnexpected;
      terrace_store* store = nullptr;
      program.take(arguments.create(&store));
      program.note(program.failure());
      return program.kind() == TERRACE_CONFIG ? 0 : kUnexpected;
    });
    EXPECT_THAT(ranks.ends(), Each(0));
    for (uint32_t rank = 0; rank < count; ++rank)
      EXPECT_THAT(notes.of(rank), HasSubstr("there is no folder terrace-rank-1-of-2"));
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"terrace-rank-0-of-2"});
  }
}

TEST(CStoreOfRanks, NamesARankThatIsKilledOnAllOthers) {
  for (const uint32_t parameters : {TERRACE_DEVICE, TERRACE_CPU}) {
    const RankNotes notes;
    const ScratchFolder folder;
    const ForkedRanks ranks(3, [&](uint32_t rank) {
      RankProgram program(notes, rank, 3);
      const Case mine = case_of({.parameters = parameters}, program, rank, 3);
      Arguments arguments(mine, folder.path());
      terrace_store* store = nullptr;
      program.take(arguments.create(&store));
      program.take(terrace_fill_with(
          store, [](void*, uint32_t, uint64_t, uint64_t, float*) { return 0; }, nullptr));
      for (uint64_t step = 1; program.kind() == 0; ++step) {
        program.take(terrace_ranks_step(program.ranks, step, nullptr));
        char votes[4] = {};  // its own, and those of all, which are in this step then
        program.take(terrace_ranks_ballot(program.ranks, votes, 1, votes + 1));
        if (rank == 1 && step == 3) raise(SIGKILL);
        terrace_optimizer groups[2] = {TERRACE_INIT(terrace_optimizer), TERRACE_INIT(terrace_optimizer)};
        terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
        settings.groups = groups, settings.group_count = 2, settings.step = step;
        if (!program.take(terrace_begin_step(store))) break;
        uint64_t lease = 0;
        const uint32_t tensor = 0;
        if (!program.take(terrace_lease(store, "op", TERRACE_FORWARD, &tensor, 1, &lease))) break;
        program.take(terrace_release(store, lease));
        for (uint32_t m = 0; m < mine.accumulation; ++m) program.take(terrace_end_micro_batch(store));
        program.take(terrace_update(store, &settings, nullptr));
      }
      if (program.kind() != TERRACE_PEER) return kUnexpected;
      program.note(program.failure());
      terrace_destroy(store);
      return program.end(5);
    });
    EXPECT_EQ(ranks.ends()[0], 5);
    EXPECT_EQ(ranks.ends()[2], 5);
    for (const uint32_t rank : {0u, 2u}) {
      EXPECT_THAT(notes.of(rank), HasSubstr("rank 1 of 3 (host "));
      EXPECT_THAT(notes.of(rank), HasSubstr("died in step 3"));
    }
  }
}

// Runs two ranks that create a store each, and returns what each of them was told.
std::vector<std::string> refusals(const std::function<void(Arguments&, uint32_t rank)>& change) {
  const RankNotes notes;
  const ScratchFolder folder;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    RankProgram program(notes, rank, 2);
    Arguments arguments(case_of({}, program, rank, 2), folder.path());
    change(arguments, rank);
    terrace_store* store = nullptr;
    program.take(arguments.create(&store));
    program.note(fmt::format("{}: {}", program.kind(), program.failure()));
    return store == nullptr ? 0 : kUnexpected;
  });
  EXPECT_THAT(ranks.ends(), Each(0));
  return {notes.of(0), notes.of(1)};
}

TEST(CStoreOfRanks, IsRefusedOnAllWhereTheyAskForDifferentOnes) {
  for (const std::string& told : refusals([](Arguments&arguments, uint32_t rank) {
         if (rank != 1) return;
         arguments.options.states = TERRACE_DEVICE;
         arguments.tensors[1].frozen = 1;
       })) {
    EXPECT_THAT(told, HasSubstr("1: "));
    EXPECT_THAT(told, HasSubstr("states: cpu on rank 0, none on rank 1"));
    EXPECT_THAT(told, HasSubstr("tensor b: number 1, bf16 [10000], trained"));
  }
}

TEST(CStoreOfRanks, IsRefusedOnAllWhereOneCannotMakeItsShare) {
  const std::vector<std::string> told =
      refusals([](Arguments& arguments, uint32_t rank) { arguments.options.states = rank == 1 ? 77 : 1; });
  EXPECT_THAT(told[1], HasSubstr("1: "));
  EXPECT_THAT(told[1], HasSubstr("77 is none of its values"));
  EXPECT_THAT(told[0], HasSubstr("9: cannot create a store \"rank 1\""));
  EXPECT_THAT(told[0], HasSubstr("77 is none of its values"));
}

TEST(CStoreOfRanks, OfALeastBudgetThatIsTooSmallIsRefusedOnAllAndMayBeTriedAgain) {
  const RankNotes notes;
  const ScratchFolder folder;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    RankProgram program(notes, rank, 2);
    Arguments arguments(case_of({}, program, rank, 2), folder.path());
    const uint64_t enough = arguments.options.host_bytes;
    if (rank == 0) arguments.options.host_bytes = 4096;
    terrace_store* store = nullptr;
    const uint32_t kind = capi::kind_of(arguments.create(&store));
    if (kind != TERRACE_CAPACITY) return kUnexpected;
    arguments.options.host_bytes = enough;
    program.take(arguments.create(&store));
    terrace_destroy(store);
    return program.end();
  });
  EXPECT_THAT(ranks.ends(), Each(0));
}

TEST(CStoreOfRanks, IsOneAtATimeAndKeepsItsRanks) {
  const RankNotes notes;
  const ScratchFolder folder;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    RankProgram program(notes, rank, 2);
    Arguments arguments(case_of({}, program, rank, 2), folder.path());
    terrace_store *store = nullptr, *second = nullptr;
    program.take(arguments.create(&store));
    if (capi::kind_of(arguments.create(&second)) != TERRACE_MISUSE) return kUnexpected;
    terrace_ranks_free(program.ranks);  // is refused
    terrace_destroy(store);
    program.take(arguments.create(&second));
    terrace_destroy(second);
    return program.end();
  });
  EXPECT_THAT(ranks.ends(), Each(0));
  EXPECT_THAT(notes.of(0), HasSubstr("terrace_ranks_free was called before the store"));
}

// Saves a checkpoint of two files; a rank that is not the first takes part in it.
terrace_error* save(terrace_store* store, const std::string& folder, bool is_first) {
  if (!is_first) return terrace_state_checkpoint(nullptr, store, nullptr);
  const char* const files[2] = {"states.bin", "frozen.bin"};
  terrace_state_options options = TERRACE_INIT(terrace_state_options);
  options.folder = folder.c_str();
  options.name = "saved";
  options.files = files;
  options.file_count = 2;
  options.is_checkpoint = 1;
  terrace_state_writer* writer = nullptr;
  terrace_error* failure = terrace_state_begin(&options, &writer);
  terrace_checkpoint checkpoint = TERRACE_INIT(terrace_checkpoint);
  checkpoint.run = 7;
  checkpoint.step = 1;
  if (failure == nullptr) failure = terrace_state_checkpoint(writer, store, &checkpoint);
  if (failure == nullptr) failure = terrace_state_complete(writer, nullptr, 1);
  terrace_state_end(writer);
  return failure;
}

std::string bytes_in(const std::filesystem::path& folder, const char* file) {
  std::ifstream bytes(folder / "saved" / file, std::ios::binary);
  return {std::istreambuf_iterator<char>(bytes), {}};
}

TEST(CStoreOfRanks, SavesTheFilesOfOneRank) {
  const ScratchFolder folder, alone;
  const RankNotes notes;
  {
    Training training({.accumulation = kMicroBatches}, alone.path());
    training.step(1);
    capi::is_well(save(training.get(), alone.path().string(), true));
  }
  const ForkedRanks ranks(3, [&](uint32_t rank) {
    RankProgram program(notes, rank, 3);
    {
      Training training(case_of({}, program, rank, 3), folder.path());
      training.step(1);
      program.take(save(training.get(), folder.path().string(), rank == 0));
    }
    return program.end();
  });
  EXPECT_THAT(ranks.ends(), Each(0)) << notes.of(0) << notes.of(1);
  for (const char* file : {"states.bin", "frozen.bin"}) {
    EXPECT_GT(bytes_in(alone.path(), file).size(), 0u);
    EXPECT_TRUE(bytes_in(folder.path(), file) == bytes_in(alone.path(), file)) << file;
  }
}

TEST(CStoreOfRanks, ThatCannotSaveGoesOnOnAll) {
  const ScratchFolder folder;
  const RankNotes notes;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    RankProgram program(notes, rank, 2);
    {
      Training training(case_of({}, program, rank, 2), folder.path());
      training.step(1);
      // The first rank has no writer.
      const uint32_t kind = capi::kind_of(terrace_state_checkpoint(nullptr, training.get(), nullptr));
      if (kind != (rank == 0 ? TERRACE_MISUSE : TERRACE_PEER)) return kUnexpected;
      training.step(2);
      program.take(save(training.get(), folder.path().string(), rank == 0));
    }
    return program.end();
  });
  EXPECT_THAT(ranks.ends(), Each(0)) << notes.of(0) << notes.of(1);
}

// Of one rank nothing changes, tensors of the program included.
TEST(CStoreOfRanks, OfOneRankIsAsWithoutThem) {
  const RankNotes notes;
  RankProgram program(notes, 0, 1);
  Case c{.gradients = TERRACE_HANDED_OVER, .callers = true};
  const ScratchFolder folder, other;
  Training without(c, folder.path());
  c.ranks = program.ranks;
  Training with(c, other.path());
  without.step(1), with.step(1);
  EXPECT_EQ(with.state(), without.state());
}

}  // namespace
}  // namespace terrace::store_of_ranks_test
