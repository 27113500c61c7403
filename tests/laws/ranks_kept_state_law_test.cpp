// Law 3 over ranks: whatever goes wrong at any transfer of any rank, or when all of them are killed at once,
// a state is whole on all ranks or it is not taken up; and what is taken up leads on to the bits of one rank
// to which nothing happened.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>
#include <terrace/reference/fault_spec.h>

#include "laws/kept_states.h"
#include "laws/law_training.h"
#include "laws/law_world.h"
#include "support/child_test.h"
#include "support/dying_engine.h"
#include "support/rank_threads.h"
#include "support/sanitized.h"
#include "support/scratch_folder.h"

namespace terrace::laws::ranks_kept_state_law_test {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTrained = 4;  // steps

// Of several ranks, and a few more with what pairs hardly ever have together: gradients that are handed over
// on the device where ranks exchange there.
std::vector<Combination> all_combinations() {
  constexpr size_t kMore = 4;
  std::vector<Combination> list = covering_array_with_commits(
      {{kParameters, {"none", "cpu", "nvme", "divided"}},
       {kRanks, {"2", "3", "4"}},
       {kHosts, {"1", "2", "3"}},
       {kBackEnd, {"threads", "messages", "peers", "copies", "nccl", "waiting", "pulled"}},
       {kPolicy, {"opt"}},
       {kChunk, {"4096", "12288", "65536"}},
       {kGradients, {"leases", "handed_over", "borrowed", "handed_over_on_device"}}});
  const size_t pairs = list.size();
  for (size_t more = 0; more < kMore; ++more) {
    Combination c = list[more * pairs / kMore];
    set_level(c, kBackEnd, "nccl");
    set_level(c, kHosts, "1");
    set_level(c, kGradients, "handed_over_on_device");
    list.push_back(c);
  }
  return list;
}

const std::vector<Combination>& combinations() {
  static const std::vector<Combination> list = all_combinations();
  return list;
}

// What a rank knows: the step of the last commit that all have.
using Durable = std::atomic<uint64_t>;

void raise(Durable& durable, uint64_t step) {
  uint64_t known = durable;
  while (known < step && !durable.compare_exchange_weak(known, step)) {
  }
}

// Commits go on beside the steps.
void train_on(LawTraining& training, Durable& durable, const std::function<void()>& noted) {
  uint64_t committed = 0;
  if (training.offloader().commits().earlier_stays()) raise(durable, 1);  // until this training has a commit
  const auto finish = [&] {
    training.offloader().commits().finish();
    raise(durable, committed);
    noted();
  };
  while (training.completed_steps() < kTrained) {
    if (training.completed_steps() % 2 == 0) finish();
    training.choose_mode();
    training.step();
    if (training.commits_now()) {
      finish();
      training.begin_commit();
      committed = training.completed_steps();
    }
    training.change_budget();
    if (training.completed_steps() == 2) training.begin_save();
  }
  training.finish_save();
  training.offloader().finish_update();
  finish();
}

struct Ending {
  std::vector<std::string> failures;  // by rank
  std::vector<uint64_t> transfers;    // by rank
  uint64_t durable = 0;
  std::optional<std::pair<uint64_t, std::vector<std::byte>>> saved;  // as LawTraining's
};

// The rank `faulty` meets the faults.
Ending train(const Combination& c, const fs::path& folder, uint32_t faulty,
             const std::vector<io::Fault>& faults) {
  const uint32_t ranks = rounds_of(c).ranks;
  MemoryLog log;
  std::vector<std::unique_ptr<io::FaultPlan>> plans;
  for (uint32_t r = 0; r < ranks; ++r)
    plans.push_back(std::make_unique<io::FaultPlan>(r == faulty ? faults : std::vector<io::Fault>{}));
  const std::unique_ptr<testing::RankWorld> world = make_law_world(c);
  Durable durable{0};
  Ending ending;
  ending.failures = testing::on_every_rank(*world, [&](Communicator& rank) {
    LawTraining training(c, {.folder = folder_of_rank(c, folder, rank.rank()),
                             .decorate = engines_with_faults(*plans[rank.rank()]),
                             .ranks = &rank});
    std::exception_ptr failure;
    try {
      train_on(training, durable, [] {});
    } catch (...) {
      failure = std::current_exception();
    }
    training.finish_save();
    if (rank.rank() == 0) ending.saved = training.saved();
    if (failure != nullptr) std::rethrow_exception(failure);
  });
  for (const auto& plan : plans) ending.transfers.push_back(plan->transfers());
  ending.durable = durable;
  return ending;
}

std::vector<io::Fault> fault_at(uint64_t index, uint64_t kind) {
  io::Fault fault;
  fault.index = index;
  if (kind == 1) fault.index = io::kEveryIndex, fault.from_index = index;
  if (kind == 2) {
    fault.index = io::kEveryIndex, fault.from_index = index, fault.error = ENOSPC;
    fault.operation = io::OpKind::write;
  }
  if (kind == 3) fault.kind = io::FaultKind::corrupt_read, fault.bytes = io::kAnyByte;
  return {fault};
}

// A run to which nothing happens, what it leads to, and what it leaves.
struct Calm {
  explicit Calm(const Combination& c) : expected(states_by_step(c, kTrained)) {
    ending = train(c, folder.path(), 0, {});
    for (const std::string& failure : ending.failures) EXPECT_EQ(failure, "");
    EXPECT_EQ(ending.saved.has_value(), level_of(c, kSaves) == "background");
    expect_saved_of_a_step(ending);
  }
  void expect_saved_of_a_step(const Ending& of) const {
    if (!of.saved) return;
    const auto& [step, records] = *of.saved;
    EXPECT_TRUE(same_bytes(records, std::span(expected.states[step]).first(expected.record_bytes)))
        << "the copy of step " << step;
  }
  const StatesByStep expected;
  const ScratchFolder folder;
  Ending ending;
};

void expect_kept_after_faults(const Combination& c, size_t number, const Calm& calm) {
  constexpr uint64_t kLookedAt = 4;
  const uint32_t ranks = rounds_of(c).ranks;
  for (uint64_t i = 0; i < kLookedAt; ++i) {
    auto faulty = static_cast<uint32_t>((number + i) % ranks);
    // The others may have no part of a chunk of one tile.
    if (calm.ending.transfers[faulty] == 0) faulty = 0;
    const uint64_t transfers = calm.ending.transfers[faulty];
    const uint64_t index = transfers / 3 + (i * transfers + number % transfers) * 2 / (3 * kLookedAt);
    SCOPED_TRACE(fmt::format("fault {} of rank {} at transfer {} of {}", i, faulty, index, transfers));
    const ScratchFolder folder;
    const Ending ending = train(c, folder.path(), faulty, fault_at(index, i));
    // Others may be through when the last write of one fails; else they end with it.
    const auto failed = std::ranges::count_if(ending.failures, [](const auto& f) { return !f.empty(); });
    EXPECT_EQ(failed > 0, !ending.failures[faulty].empty());
    calm.expect_saved_of_a_step(ending);
    expect_gone_on_from(c, folder.path(), calm.expected, ending.durable, false);
  }
}

// --- All ranks are killed at once ---

// Run by the law below, in a process of its own: ranks train until it dies, and note the step that is
// durable.
TEST(RanksKeptStateChild, DISABLED_TrainsUntilItDies) {
  const fs::path folder = testing::child_folder();
  const Combination& c = combinations()[testing::child_seed()];
  int64_t lives_for = 0;
  std::ifstream(folder / "lives_for") >> lives_for;
  static std::atomic<int64_t> left{0};
  left = lives_for;
  const auto decorate = [&](std::unique_ptr<io::Engine> engine) {
    return std::make_unique<testing::DyingEngine>(std::move(engine), left, lives_for % 2 == 0);
  };
  std::ofstream notes(folder / "durable");
  std::mutex mutex;
  Durable durable{0};
  const std::unique_ptr<testing::RankWorld> world = make_law_world(c);
  testing::on_every_rank(*world, [&](Communicator& rank) {
    LawTraining training(
        c, {.folder = folder_of_rank(c, folder, rank.rank()), .decorate = decorate, .ranks = &rank});
    train_on(training, durable, [&] {
      const std::lock_guard lock(mutex);
      notes << durable.load() << std::endl;
    });
  });
}

void expect_kept_by_killed_ranks(const Combination& c, size_t number, const Calm& calm) {
  constexpr uint64_t kKills = 3;
  uint64_t transfers = 0;
  for (const uint64_t of_rank : calm.ending.transfers) transfers += of_rank;
  for (uint64_t i = 0; i < kKills; ++i) {
    const uint64_t lives_for = transfers / 4 + (i * transfers + number * 31 % transfers) * 3 / (4 * kKills);
    SCOPED_TRACE(fmt::format("killed at transfer {} of {}", lives_for, transfers));
    const ScratchFolder folder;
    std::ofstream(folder.path() / "lives_for") << lives_for;
    const int status =
        testing::run_test_in_child("RanksKeptStateChild.*", static_cast<uint32_t>(number), folder.path());
    ASSERT_TRUE(WIFEXITED(status)) << status;
    uint64_t durable = 0, noted = 0;
    std::ifstream notes(folder.path() / "durable");
    while (notes >> noted) durable = std::max(durable, noted);
    expect_gone_on_from(c, folder.path(), calm.expected, durable, false);
  }
}

// --- Bytes of a tier change ---

void expect_no_changed_byte_is_trained_on(const Combination& c, size_t number, const Calm& calm) {
  constexpr uint64_t kFlips = 6;
  const fs::path& kept = calm.folder.path();
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kept)) {
    if (entry.is_regular_file() && entry.path().filename() != "lock") files.push_back(entry.path());
  }
  std::mt19937_64 random(20261126 + number);
  for (uint64_t i = 0; i < kFlips; ++i) {
    const ScratchFolder copy;
    fs::copy(kept, copy.path(), fs::copy_options::recursive);
    const fs::path file = copy.path() / fs::relative(files[random() % files.size()], kept);
    const uint64_t offset = random() % fs::file_size(file);
    SCOPED_TRACE(fmt::format("{} at byte {}", file.string(), offset));
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(static_cast<std::streamoff>(offset));
    const int byte = stream.get();
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(static_cast<char>(byte ^ (1 + static_cast<int>(random() % 255))));
    stream.close();
    expect_gone_on_from(c, copy.path(), calm.expected, calm.ending.durable, true);
  }
}

class RanksKeptStateLaw : public ::testing::TestWithParam<size_t> {};

TEST_P(RanksKeptStateLaw, WhatIsKeptIsTheStateOfAStepOnAllRanks) {
  for (const size_t number : part_of_list(GetParam(), combinations().size(), 2 * testing::kOneIn)) {
    const Combination& c = combinations()[number];
    SCOPED_TRACE(describe(c));
    const Calm calm(c);
    ASSERT_FALSE(HasFailure());
    expect_kept_after_faults(c, number, calm);
    expect_kept_by_killed_ranks(c, number, calm);
    expect_no_changed_byte_is_trained_on(c, number, calm);
    // Last, because it goes on in the folder itself.
    ASSERT_TRUE(expect_gone_on_from(c, calm.folder.path(), calm.expected, calm.ending.durable, false));
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, RanksKeptStateLaw, ::testing::Range(size_t{0}, kParts));

}  // namespace
}  // namespace terrace::laws::ranks_kept_state_law_test
