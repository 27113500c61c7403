// Law 3 under every factor of law 1: whatever goes wrong at any transfer of a step and of the steps after it,
// all that is kept is the state of a step. Neither a commit, nor a copy of one, nor what is read from memory
// afterwards is ever anything else, whatever the owner of the offloader asks for after a failure; and what is
// left leads on to the bits of a run to which nothing happened.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>
#include <terrace/reference/fault_spec.h>

#include "laws/kept_states.h"
#include "laws/law_training.h"
#include "support/child_test.h"
#include "support/dying_engine.h"
#include "support/enum_values.h"
#include "support/sanitized.h"
#include "support/scratch_folder.h"

namespace terrace::laws::kept_state_law_test {
namespace {

constexpr uint64_t kTrained = 4;   // steps
constexpr uint64_t kAttacked = 2;  // the first of them that anything happens to
constexpr uint64_t kFinished = 3;  // before it the commit in progress is waited for

enum class Attack : uint8_t {
  fail_once,
  fail_from,
  disk_full_from,
  corrupt_read,
  torn_write,
  lost_write,
  short_transfer,
  slow,
  not_finite,  // the gradients of a step
};
constexpr auto kAttacks = testing::enumerator_names<Attack>();

// The disk claims what it did not do: that can be found out only when it is read.
bool lies(Attack attack) {
  return attack == Attack::torn_write || attack == Attack::lost_write;
}

bool fails(Attack attack) {
  return attack == Attack::fail_once || attack == Attack::fail_from || attack == Attack::disk_full_from;
}

// `index` among all transfers of a run.
std::vector<io::Fault> faults_of(Attack attack, uint64_t index) {
  io::Fault fault;
  fault.index = index;
  switch (attack) {
    case Attack::fail_once:
      break;
    case Attack::fail_from:
      fault.index = io::kEveryIndex, fault.from_index = index;
      break;
    case Attack::disk_full_from:
      fault.index = io::kEveryIndex, fault.from_index = index, fault.error = ENOSPC;
      fault.operation = io::OpKind::write;
      break;
    case Attack::corrupt_read:
      fault.kind = io::FaultKind::corrupt_read, fault.bytes = io::kAnyByte;
      break;
    case Attack::torn_write:
      fault.kind = io::FaultKind::torn_write, fault.bytes = 4096;
      break;
    case Attack::lost_write:
      fault.kind = io::FaultKind::torn_write;
      break;
    case Attack::short_transfer:
      fault.kind = io::FaultKind::short_transfer, fault.bytes = 4096;
      break;
    case Attack::slow:
      fault.index = io::kEveryIndex, fault.from_index = index, fault.every = 3;
      fault.kind = io::FaultKind::delay, fault.delay_ns = 200'000;
      break;
    case Attack::not_finite:
      return {};
  }
  return {fault};
}

struct Ending {
  std::string error;     // empty: it ended well
  uint64_t durable = 0;  // the step of the last commit that is known to be durable
  uint64_t completed = 0;
  std::vector<uint64_t> transfers;             // before each step, and in the end
  std::optional<std::vector<std::byte>> read;  // from memory, in the end
  std::string read_error;                      // why nothing was read
  std::optional<std::pair<uint64_t, std::vector<std::byte>>> saved;
};

void in_passing(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error&) {
  }
}

void train_on(LawTraining& training, Ending& ending, const std::function<void()>& before_step,
              std::optional<uint64_t> poisoned_step) {
  uint64_t committed = 0;
  if (training.offloader().commits().earlier_stays()) ending.durable = 1;  // until this training has a commit
  while (training.completed_steps() < kTrained) {
    const uint64_t step = training.completed_steps() + 1;
    if (step == kFinished) {
      training.offloader().commits().finish();
      ending.durable = std::max(ending.durable, committed);
    }
    before_step();
    training.choose_mode();
    const bool poisoned = poisoned_step == step;
    const UpdateResult result = training.step(nullptr, poisoned);
    ending.completed = training.completed_steps();
    if (poisoned)
      throw Error(ErrorKind::cancelled, {"a step of this law has no finite gradients", "", "", ""});
    ASSERT_FALSE(result.partly_applied);
    if (training.commits_now()) {
      training.begin_commit();
      committed = step;
    }
    training.change_budget();
    if (step == kAttacked) training.begin_save();
  }
}

// Trains until something throws; then asks for all that anybody might want to keep.
Ending train(const Combination& c, const std::filesystem::path& folder, std::vector<io::Fault> faults,
             std::optional<uint64_t> poisoned_step = std::nullopt) {
  MemoryLog log;
  io::FaultPlan plan(std::move(faults));
  Ending ending;
  std::optional<LawTraining> training;
  try {
    training.emplace(c, LawSurroundings{.folder = folder, .decorate = engines_with_faults(plan)});
    train_on(
        *training, ending, [&] { ending.transfers.push_back(plan.transfers()); }, poisoned_step);
    training->offloader().finish_update();
    training->offloader().commits().finish();
    ending.durable = training->commits_now() ? kTrained : ending.durable;
  } catch (const Error& error) {
    ending.error = error.what();
  }
  ending.transfers.push_back(plan.transfers());
  if (!training) return ending;
  in_passing([&] { training->finish_save(); });
  if (training->offloader().commits().are_kept()) {
    in_passing([&] { training->begin_commit(); });
    in_passing([&] { training->offloader().commits().finish(); });
  }
  try {
    ending.read = training->state();
  } catch (const Error& error) {
    ending.read_error = error.what();
  }
  ending.saved = training->saved();
  return ending;
}

// What a run of the combination to which nothing happens is made of.
struct Calm {
  explicit Calm(const Combination& c) : expected(states_by_step(c, kTrained)) {
    const ScratchFolder folder;
    const Ending ending = train(c, folder.path(), {});
    EXPECT_EQ(ending.error, "");
    first_transfer = ending.transfers.at(kAttacked - 1);
    last_transfer = ending.transfers.back();
    expect_kept_of_steps(ending, "nothing");
  }

  // Everything that a run has kept is of the step that it says.
  void expect_kept_of_steps(const Ending& ending, const std::string& what, bool is_readable = true) const {
    if (ending.read) {
      EXPECT_TRUE(same_bytes(*ending.read, expected.states[ending.completed]))
          << what << ": read from memory";
    }
    if (ending.error.empty() && is_readable) {
      EXPECT_TRUE(ending.read) << what << ": nothing is read";
    }
    if (!ending.saved) return;
    const auto& [step, records] = *ending.saved;
    EXPECT_TRUE(same_bytes(records, std::span(expected.states[step]).first(expected.record_bytes)))
        << what << ": the copy of step " << step;
  }

  const StatesByStep expected;
  uint64_t first_transfer = 0, last_transfer = 0;
};

// Where commits are kept, and where what is in memory is all there is.
const std::vector<Combination>& combinations_on_nvme() {
  static const std::vector<Combination> list = covering_array_with_commits({});
  return list;
}
const std::vector<Combination>& combinations_in_memory() {
  static const std::vector<Combination> list = [] {
    std::vector<Combination> all = covering_array(
        Strength::pairs,
        {{kStates, {"none", "cpu"}}, {kParameters, {"nvme"}}, {kThreads, {"1"}}, {kChunk, {"4096"}}});
    const std::vector<OnlyLevels> in_place = {
        {kStates, {"nvme"}}, {kCommits, {"in place"}}, {kThreads, {"1"}}, {kChunk, {"4096"}}};
    for (const std::vector<Combination>& more :
         {covering_array(Strength::pairs, in_place), covering_array_of_parameter_masters(in_place)})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return list;
}

// Every so many transfers one is attacked; 1 asks for all of them, which takes hours.
uint64_t stride() {
  const char* const wanted = std::getenv("TERRACE_LAW_STRIDE");
  return wanted != nullptr ? std::max(1, std::atoi(wanted)) : 0;
}

// Each transfer that is looked at meets another attack, and every attack has its turn from one combination to
// the next.
constexpr uint64_t kLookedAt = 6;

struct AttackedRun {
  uint64_t index;  // of the transfer
  Attack attack;
};

std::vector<AttackedRun> runs_of(const Calm& calm, size_t number) {
  const uint64_t window = calm.last_transfer - calm.first_transfer;
  std::vector<AttackedRun> runs;
  if (stride() > 0) {
    for (uint64_t i = 0; i < window; i += stride()) {
      for (size_t a = 0; a < kAttacks.size(); ++a) {
        if (static_cast<Attack>(a) != Attack::not_finite)
          runs.push_back({calm.first_transfer + i, static_cast<Attack>(a)});
      }
    }
    return runs;
  }
  const uint64_t looked_at = std::min(window, std::max<uint64_t>(1, kLookedAt / testing::kOneIn));
  for (uint64_t i = 0; i < looked_at; ++i) {
    const auto attack = static_cast<Attack>((i + number) % static_cast<size_t>(Attack::not_finite));
    runs.push_back({calm.first_transfer + (i * window + number % window) / looked_at, attack});
  }
  return runs;
}

// What ended the run; empty: nothing did.
void expect_said(const std::string& error, Attack attack) {
  if (attack == Attack::short_transfer || attack == Attack::slow) {
    EXPECT_EQ(error, "");
  }
  if (error.empty()) return;
  EXPECT_NE(error.find(".tier"), std::string::npos) << error;
  if (attack == Attack::fail_once || attack == Attack::fail_from) {
    EXPECT_NE(error.find("EIO"), std::string::npos) << error;
  }
  if (attack == Attack::disk_full_from) {
    EXPECT_NE(error.find("ENOSPC"), std::string::npos) << error;
  }
}

void attack_all(const Combination& c, size_t number, const Calm& calm) {
  for (const AttackedRun& run : runs_of(calm, number)) {
    const std::string what =
        fmt::format("{} at transfer {}", kAttacks[static_cast<size_t>(run.attack)], run.index);
    SCOPED_TRACE(what);
    const ScratchFolder folder;
    const Ending ending = train(c, folder.path(), faults_of(run.attack, run.index));
    // A write of the last step may fail after the training's end, and the reading says so.
    const bool is_late = ending.transfers.size() > kTrained && run.index >= ending.transfers[kTrained - 1];
    const bool reading_says = is_late && fails(run.attack) && ending.error.empty() && !ending.read;
    calm.expect_kept_of_steps(ending, what, !lies(run.attack) && !reading_says);
    expect_said(reading_says ? ending.read_error : ending.error, run.attack);
    expect_gone_on_from(c, folder.path(), calm.expected, ending.durable, lies(run.attack));
  }
  for (uint64_t step = kAttacked; step <= kTrained; ++step) {
    SCOPED_TRACE(fmt::format("gradients of step {} that are not finite", step));
    const ScratchFolder folder;
    const Ending ending = train(c, folder.path(), {}, step);
    EXPECT_NE(ending.error, "");
    calm.expect_kept_of_steps(ending, "not finite");
    expect_gone_on_from(c, folder.path(), calm.expected, ending.durable, false);
  }
}

// --- Processes that are killed ---

// Run by the law below, in a process of its own: trains until it dies, and notes the step that is durable.
TEST(KeptStateChild, DISABLED_TrainsUntilItDies) {
  const std::filesystem::path folder = testing::child_folder();
  const Combination& c = combinations_on_nvme()[testing::child_seed()];
  int64_t lives_for = 0;
  std::ifstream(folder / "lives_for") >> lives_for;
  static std::atomic<int64_t> left{0};
  left = lives_for;
  const auto decorate = [&](std::unique_ptr<io::Engine> engine) {
    return std::make_unique<testing::DyingEngine>(std::move(engine), left, lives_for % 2 == 0);
  };
  LawTraining training(c, {.folder = folder, .decorate = decorate});
  std::ofstream durable(folder / "durable");
  Ending ending;
  train_on(
      training, ending, [&] { durable << ending.durable << std::endl; }, std::nullopt);
}

void expect_kept_by_a_killed_process(size_t number, const Calm& calm, uint64_t lives_for) {
  SCOPED_TRACE(fmt::format("killed at transfer {}", lives_for));
  const ScratchFolder folder;
  std::ofstream(folder.path() / "lives_for") << lives_for;
  const int status =
      testing::run_test_in_child("KeptStateChild.*", static_cast<uint32_t>(number), folder.path());
  ASSERT_TRUE(WIFEXITED(status)) << status;
  // How many transfers there are depends a little on what was ready when.
  const bool is_late =
      10 * (lives_for - calm.first_transfer) > 9 * (calm.last_transfer - calm.first_transfer);
  ASSERT_TRUE(WEXITSTATUS(status) == testing::kDied || (is_late && WEXITSTATUS(status) == 0))
      << WEXITSTATUS(status);
  uint64_t durable = 0, noted = 0;
  std::ifstream notes(folder.path() / "durable");
  while (notes >> noted) durable = noted;
  expect_gone_on_from(combinations_on_nvme()[number], folder.path(), calm.expected, durable, false);
}

class KeptStateLaw : public ::testing::TestWithParam<size_t> {};

TEST_P(KeptStateLaw, WhatIsKeptIsTheStateOfAStep) {
  const std::vector<Combination>& list = combinations_on_nvme();
  for (const size_t number : part_of_list(GetParam(), list.size(), 2 * testing::kOneIn)) {
    SCOPED_TRACE(describe(list[number]));
    const Calm calm(list[number]);
    ASSERT_FALSE(HasFailure());
    attack_all(list[number], number, calm);
    const uint64_t window = calm.last_transfer - calm.first_transfer;
    const uint64_t every = stride() > 0 ? stride() : window;
    for (uint64_t i = number * 7 % every; i < window; i += every)
      expect_kept_by_a_killed_process(number, calm, calm.first_transfer + i);
  }
}

TEST_P(KeptStateLaw, WhatIsReadFromMemoryIsTheStateOfAStep) {
  const std::vector<Combination>& list = combinations_in_memory();
  for (const size_t number : part_of_list(GetParam(), list.size(), 4 * testing::kOneIn)) {
    SCOPED_TRACE(describe(list[number]));
    const Calm calm(list[number]);
    ASSERT_FALSE(HasFailure());
    attack_all(list[number], number, calm);
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, KeptStateLaw, ::testing::Range(size_t{0}, kParts));

}  // namespace
}  // namespace terrace::laws::kept_state_law_test
