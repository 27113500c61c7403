// Updates that run beside the step thread: commits of the state between two of them, and disks that fail.
#include <gtest/gtest.h>

#include <cerrno>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>

#include "offload/commits/commit_rig.h"
#include "offload/offloader_rig.h"
#include "support/fault_engine.h"

namespace terrace::update_fault_test {
namespace {

constexpr UpdateMode kModes[] = {UpdateMode::after_backward, UpdateMode::next_forward,
                                 UpdateMode::during_backward};

// A commit after every step, most of them put off to the next one's backward pass; then the run ends without
// a word, and another one goes on from what is there.
TEST(UpdateModeCommits, AreTheStateOfTheirStepWhateverRunsMeanwhile) {
  for (const UpdateMode mode : kModes) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      CommitCase c{.parameters = parameters, .cached_quarters = 2};
      const std::vector<std::vector<std::byte>> expected = states_without_commits(c, 6);
      const ScratchFolder folder;
      {
        CommitRig rig(c, folder.path());
        rig.offloader->set_update_mode(mode);
        rig.offloader->commits().begin(step_info(0));
        for (uint64_t number = 1; number <= 4; ++number) {
          rig.step(number);
          rig.offloader->commits().begin(step_info(number));
        }
      }
      c.start = TierStart::resume;
      CommitRig rig(c, folder.path());
      rig.offloader->set_update_mode(mode);
      ASSERT_EQ(rig.offloader->commits().taken_up_info(), step_info(4)) << name_of(mode);
      EXPECT_EQ(rig.state(), expected[4]) << name_of(mode);
      for (uint64_t number = 5; number <= 6; ++number) rig.step(number);
      EXPECT_EQ(rig.state(), expected[6]) << name_of(mode);
    }
  }
}

TEST(UpdateModeCommits, AreThereWhenSomebodyWaitsForThem) {
  CommitCase c{.parameters = Placement::cpu};
  const std::vector<std::vector<std::byte>> expected = states_without_commits(c, 3);
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  rig.offloader->set_update_mode(UpdateMode::next_forward);
  for (uint64_t number = 1; number <= 3; ++number) {
    rig.step(number);
    EXPECT_TRUE(rig.offloader->update_pending());
    rig.offloader->commits().begin(step_info(number));
    EXPECT_TRUE(rig.offloader->commits().in_progress());
    EXPECT_EQ(rig.offloader->commits().finish(), number);
    EXPECT_FALSE(rig.offloader->update_pending());
  }
  EXPECT_EQ(rig.state(), expected[3]);
}

// --- Failures ---

struct Outcome {
  std::string text;  // empty: nothing went wrong
  uint64_t at = 0;   // the step whose calls threw
  uint64_t requests = 0;
};

// Trains two steps; `victim` counts the engines as they are made.
Outcome train_with_fault(UpdateMode mode, Placement parameters, uint32_t victim,
                         std::vector<io::Fault> faults) {
  io::FaultPlan plan(std::move(faults));
  Outcome outcome;
  {
    Case c{parameters, Placement::nvme};
    c.engine = io::EngineKind::threads;
    c.mode = mode;
    uint32_t made = 0;
    c.decorate = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
      if (made++ != victim) return engine;
      return std::make_unique<io::FaultEngine>(std::move(engine), plan);
    };
    Rig rig(c);
    try {
      for (uint64_t number = 1; number <= 2; ++number) {
        outcome.at = number;
        rig.step(number, 1);
      }
      outcome.at = 3;
      rig.offloader->finish_update();
    } catch (const Error& error) {
      outcome.text = error.what();
    }
  }
  outcome.requests = plan.transfers();
  return outcome;
}

// The engine of the updates is made when the mode is first set: behind that of the step, and of the reads.
uint32_t update_engine(Placement parameters) {
  return parameters == Placement::nvme ? 2 : 1;
}

TEST(UpdateModeFaults, ReachTheStepThreadWithFileAndOffset) {
  for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      const uint32_t victim = update_engine(parameters);
      const uint64_t requests = train_with_fault(mode, parameters, victim, {}).requests;
      ASSERT_GT(requests, 0u);
      for (const uint64_t at : {uint64_t{0}, requests / 4, requests / 2, requests - 1}) {
        const Outcome outcome = train_with_fault(mode, parameters, victim, {{.index = at, .error = EIO}});
        EXPECT_NE(outcome.text.find(".tier"), std::string::npos) << outcome.text;
        EXPECT_NE(outcome.text.find("offset"), std::string::npos) << outcome.text;
        // Of the first update: in the next step, or in the same one.
        const uint64_t update = at < requests / 2 ? 1 : 2;
        EXPECT_EQ(outcome.at, mode == UpdateMode::next_forward ? update + 1 : update) << at << name_of(mode);
      }
    }
  }
}

TEST(UpdateModeFaults, LeaveTheLastCommitWhole) {
  for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
      CommitCase c{.parameters = parameters};
      const std::vector<std::vector<std::byte>> expected = states_without_commits(c, 5);
      const ScratchFolder folder;
      uint32_t made = 0;
      io::FaultPlan plan({{.index = 5, .error = EIO, .operation = io::OpKind::read}});
      c.decorate = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
        if (made++ != update_engine(parameters) + 1) return engine;  // behind that of the commits
        return std::make_unique<io::FaultEngine>(std::move(engine), plan);
      };
      {
        CommitRig rig(c, folder.path());
        rig.offloader->set_update_mode(mode);
        rig.offloader->commits().begin(step_info(0));
        try {
          for (uint64_t number = 1; number <= 5; ++number) {
            rig.step(number);
            rig.offloader->commits().begin(step_info(number));
          }
          rig.offloader->finish_update();
          FAIL() << "the disk did not fail";
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::io) << error.what();
        }
        // The commit that was put off to the update is lost with it, which is said to whoever waits for it.
        if (mode == UpdateMode::next_forward) {
          EXPECT_THROW(rig.offloader->commits().finish(), Error);
        }
        const uint64_t last = rig.offloader->commits().finish();
        EXPECT_EQ(last, rig.offloader->commits().last());
        EXPECT_FALSE(rig.offloader->commits().in_progress()) << "no later update brings it back";
      }
      c.decorate = nullptr;
      c.start = TierStart::resume;
      CommitRig rig(c, folder.path());
      const uint64_t last = step_of(rig.offloader->commits().taken_up_info());
      ASSERT_LT(last, 5u);
      EXPECT_GT(last, 0u);
      EXPECT_EQ(rig.state(), expected[last]) << name_of(mode);
    }
  }
}

// As where a state is loaded again into the memory of the run that failed.
// With all gradients in host memory, and with some of them on nvme.
class UpdateModeFaultsTest : public ::testing::TestWithParam<bool> {};

TEST_P(UpdateModeFaultsTest, LeaveNothingBehindWhereAnotherStateIsLoaded) {
  Case c{Placement::nvme, Placement::nvme};
  c.engine = io::EngineKind::threads;
  c.mode = UpdateMode::next_forward;
  c.layout = kCompact;
  c.holds_gradients = GetParam();
  std::optional<io::FaultPlan> plan;
  const auto make = [&](std::vector<io::Fault> faults) {
    plan.emplace(std::move(faults));
    uint32_t made = 0;
    c.decorate = [&plan, made](std::unique_ptr<io::Engine> engine) mutable -> std::unique_ptr<io::Engine> {
      if (made++ != update_engine(Placement::nvme)) return engine;
      return std::make_unique<io::FaultEngine>(std::move(engine), *plan);
    };
    return std::make_unique<Rig>(c);
  };
  const auto update = [](Rig& rig, uint64_t number) {
    rig.step(number, 1);
    rig.offloader->finish_update();
  };
  std::unique_ptr<Rig> rig = make({});
  ASSERT_EQ(rig->offloader->plan().spilled_chunks > 0, !GetParam());
  update(*rig, 1);
  const uint64_t requests = plan->transfers();
  update(*rig, 2);
  const std::vector<std::byte> expected = rig->state();
  for (const uint64_t quarter : {0, 1, 2, 3}) {
    rig.reset();
    rig = make({{.index = requests + quarter * requests / 4, .error = EIO}});
    update(*rig, 1);
    EXPECT_THROW(update(*rig, 2), Error);
    toy::initialise(*rig->offloader);
    update(*rig, 1);
    update(*rig, 2);
    EXPECT_EQ(rig->state(), expected) << quarter;
  }
}

INSTANTIATE_TEST_SUITE_P(Held, UpdateModeFaultsTest, ::testing::Bool());

TEST(UpdateModeFaults, AFlippedByteOfTheStatesIsNeverTrainedOn) {
  for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
    const Outcome outcome = train_with_fault(
        mode, Placement::cpu, update_engine(Placement::cpu),
        {{.index = 5, .kind = io::FaultKind::corrupt_read, .bytes = 4097, .operation = io::OpKind::read}});
    EXPECT_NE(outcome.text.find("checksum"), std::string::npos) << outcome.text;
  }
}

}  // namespace
}  // namespace terrace::update_fault_test
