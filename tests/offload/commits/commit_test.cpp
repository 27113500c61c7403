// Commits beside the training: they change no bit of it, write what is newer in host memory and nothing else,
// and wait for nothing but what they must.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>

#include "offload/commits/commit_rig.h"
#include "support/allocation_counter.h"
#include "support/expect_error.h"
#include "support/fault_engine.h"
#include "support/sanitized.h"

namespace terrace::commit_test {
namespace {

TEST(Commit, ChangesNoBitWhateverIsCachedAndHoweverOften) {
  for (const CommitCase& base :
       {CommitCase{}, CommitCase{.parameters = Placement::nvme, .with_frozen = true},
        CommitCase{.parameters = Placement::none, .type = DataType::fp32, .accumulation = 3}}) {
    const auto expected = states_without_commits(base, 4);
    for (const io::EngineKind engine :
         {io::EngineKind::io_uring, io::EngineKind::libaio, io::EngineKind::threads}) {
      for (const uint32_t quarters : {0u, 1u, 4u}) {
        for (const uint64_t cadence : {1u, 3u}) {
          if (testing::kSanitized && (quarters == 1) != (cadence == 3)) continue;
          CommitCase c = base;
          c.engine = engine;
          c.cached_quarters = quarters;
          const ScratchFolder first, second;
          std::vector<std::filesystem::path> folders = {first.path()};
          if (quarters == 1) folders.push_back(second.path());
          CommitRig rig(c, folders);
          rig.offloader->commits().begin("start");
          for (uint64_t step = 1; step <= 4; ++step) {
            rig.step(step);
            if (step % cadence == 0) rig.offloader->commits().begin(step_info(step));
          }
          EXPECT_EQ(rig.state(), expected[4])
              << name_of(engine) << " " << quarters << "/4, every " << cadence << " steps";
          EXPECT_EQ(rig.offloader->commits().finish(), 1 + 4 / cadence);
        }
      }
    }
  }
}

TEST(Commit, WritesWhatIsNewerInMemoryAndNothingElse) {
  for (const bool with_frozen : {false, true}) {
    CommitCase c;
    c.parameters = with_frozen ? Placement::nvme : Placement::cpu;
    c.with_frozen = with_frozen;
    c.cached_quarters = 3;
    const ScratchFolder folder;
    CommitRig rig(c, folder.path());
    const uint64_t cached = rig.cached_record_bytes();
    ASSERT_GT(cached, 0u);
    const auto commit = [&] {
      const OffloadCounters before = rig.offloader->report().counters();
      rig.offloader->commits().begin("");
      rig.offloader->commits().finish();
      const OffloadCounters moved = rig.offloader->report().counters() - before;
      EXPECT_EQ(moved.commit_count, 1u);
      EXPECT_GT(moved.manifest_bytes, 0u);
      return moved.commit_write_bytes;
    };
    // At first everything that is in memory, what is frozen with it: once and never again.
    const uint64_t first = commit();
    EXPECT_EQ(commit(), 0u);
    if (with_frozen) {
      EXPECT_GT(first, cached);
    } else {
      EXPECT_EQ(first, cached);
    }
    rig.step(1);
    EXPECT_EQ(commit(), cached);
    EXPECT_EQ(commit(), 0u);
    // A step that is skipped changes nothing.
    rig.offloader->begin_step();
    toy::run_micro_batch(*rig.offloader, rig.specs, 0);
    rig.offloader->abandon_step();
    EXPECT_EQ(commit(), 0u);
    rig.step(2);
    rig.step(3);
    EXPECT_EQ(commit(), cached);
  }
}

TEST(Commit, LeavesTheTrafficOfTheTrainingAtItsBound) {
  const ScratchFolder folder;
  CommitRig rig({.parameters = Placement::nvme, .cached_quarters = 2}, folder.path());
  rig.step(1);
  for (uint64_t step = 2; step <= 4; ++step) {
    rig.offloader->commits().begin(step_info(step - 1));
    const OffloadCounters before = rig.offloader->report().counters();
    rig.step(step);
    const OffloadCounters moved = rig.offloader->report().counters() - before;
    EXPECT_EQ(moved.record_read_bytes, rig.offloader->report().traffic_bound().record_read_bytes);
    EXPECT_EQ(moved.record_write_bytes, rig.offloader->report().traffic_bound().record_write_bytes);
    EXPECT_EQ(moved.param_write_bytes, rig.offloader->report().traffic_bound().param_write_bytes);
  }
}

// The commit writes nothing until the update waits for it, so that both are at the same bytes: the update
// must wait for each cached chunk, and must leave the commit the slots that it needs.
void expect_commit_of_its_moment(CommitCase c) {
  CommitGate gate;
  const auto expected = states_without_commits(c, 4);
  c.decorate = decorate_commits(c, [&](std::unique_ptr<io::Engine> engine) {
    return std::make_unique<GateEngine>(std::move(engine), [&gate] { gate(); });
  });
  const ScratchFolder folder;
  {
    CommitRig rig(c, folder.path());
    train_past_commit(rig, gate);
    EXPECT_EQ(rig.state(), expected[4]);
    if (rig.cached_record_bytes() > 0) {
      EXPECT_GT(gate.waits_seen(), 0u);
    }
  }
  expect_commit(c, folder.path(), 2, expected);
}

TEST(Commit, IsTheStateOfItsMomentThoughTheUpdateOvertakesIt) {
  uint64_t runs = 0;
  for (const UpdateMode mode :
       {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const uint32_t quarters : {0u, 1u, 2u, 3u, 4u}) {
      for (const uint64_t tiles : {1u, 2u}) {
        if (runs++ % testing::kOneIn != 0) continue;
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(mode), quarters, tiles));
        CommitCase c{.chunk_elements = tiles * kTileElements, .cached_quarters = quarters};
        c.mode = mode;
        expect_commit_of_its_moment(c);
      }
    }
  }
}

TEST(Commit, LeavesTheCommitBeforeWholeUntilItIsDurable) {
  for (const uint32_t quarters : {1u, 3u}) {
    CommitGate gate;
    CommitCase c{.cached_quarters = quarters};
    const auto expected = states_without_commits(c, 5);
    c.decorate = decorate_commits(c, [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
      return std::make_unique<GateEngine>(
          std::make_unique<io::FaultEngine>(
              std::move(engine), std::vector<io::Fault>{{io::kEveryIndex, io::FaultKind::fail, 0, ENOSPC}}),
          [&gate] { gate(); });
    });
    const ScratchFolder folder;
    {
      CommitCase whole = c;
      whole.decorate = nullptr;
      CommitRig rig(whole, folder.path());
      rig.step(1);
      rig.offloader->commits().begin(step_info(1));
    }
    c.start = TierStart::resume;
    {
      CommitRig rig(c, folder.path());
      gate.watch(rig.offloader.get());
      gate.open(false);
      rig.step(2);
      rig.offloader->commits().begin(step_info(2));
      rig.step(3);  // over what step 2 wrote and step 1 did, if its slots were given up
      try {
        rig.offloader->commits().finish();
        FAIL() << "a commit that could write nothing succeeded";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("ENOSPC"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("records.tier"), std::string::npos) << error.what();
      }
      EXPECT_EQ(rig.offloader->commits().last(), 1u);
      rig.step(4);
      rig.step(5);
      EXPECT_EQ(rig.state(), expected[5]);
    }
    expect_commit(c, folder.path(), 1, expected);
  }
}

// Whose first commit fails.
CommitCase failing_first() {
  CommitCase c;
  c.decorate = decorate_commits(c, [](std::unique_ptr<io::Engine> engine) {
    // Beyond every attempt to write the first block elsewhere.
    std::vector<io::Fault> faults;
    for (uint64_t index = 0; index < 16; ++index) faults.push_back({index, io::FaultKind::fail});
    return std::make_unique<io::FaultEngine>(std::move(engine), std::move(faults));
  });
  return c;
}

TEST(Commit, ReportsItsFailureAtTheNextStepAndThenGoesOn) {
  const CommitCase c = failing_first();
  const auto expected = states_without_commits(c, 2);
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  rig.step(1);
  rig.offloader->commits().begin(step_info(1));
  while (rig.offloader->commits().in_progress()) std::this_thread::yield();
  EXPECT_THROW(rig.offloader->begin_step(), Error);
  rig.step(2);
  EXPECT_EQ(rig.state(), expected[2]);
  rig.offloader->commits().begin(step_info(2));
  EXPECT_GT(rig.offloader->commits().finish(), 0u);
}

TEST(Commit, SaysWhatItFailedWithToWhoeverWaitsForItsEnd) {
  const ScratchFolder folder;
  CommitRig rig(failing_first(), folder.path());
  rig.step(1);
  rig.offloader->commits().end();  // there was none
  rig.offloader->commits().begin(step_info(1));
  EXPECT_THROW(rig.offloader->commits().end(), Error);
  rig.offloader->commits().end();
  rig.step(2);
}

// A cleaner of temporary files must not make a run report commits that nobody can go on from.
TEST(Commit, FailsWhereAFileOfTheTierIsNotFoundByItsNameAnyMore) {
  namespace fs = std::filesystem;
  for (const char* name : {"records.tier", "lock"}) {
    for (const bool is_replaced : {false, true}) {
      SCOPED_TRACE(name);
      const CommitCase c;
      const ScratchFolder folder;
      CommitRig rig(c, folder.path());
      rig.step(1);
      rig.offloader->commits().begin(step_info(1));
      const uint64_t last = rig.offloader->commits().finish();
      const fs::path file = folder.path() / "terrace-tier" / name;
      if (is_replaced) fs::copy(file, file.string() + ".copy");
      fs::remove(file);
      if (is_replaced) fs::rename(file.string() + ".copy", file);
      rig.step(2);
      rig.offloader->commits().begin(step_info(2));
      testing::expect_error(ErrorKind::io, {"terrace-tier", "while a job"},
                            [&] { rig.offloader->commits().finish(); });
      EXPECT_EQ(rig.offloader->commits().last(), last);
    }
  }
}

TEST(Commit, AllocatesNothingInTheStepsBetween) {
  const ScratchFolder folder;
  CommitRig rig({.parameters = Placement::nvme, .threads = 1}, folder.path());
  for (uint64_t step = 1; step <= 3; ++step) {
    rig.step(step);
    rig.offloader->commits().begin(step_info(step));
  }
  rig.offloader->commits().finish();
  rig.offloader->begin_step();
  toy::run_micro_batch(*rig.offloader, rig.specs, 0);
  rig.offloader->end_micro_batch();
  const std::vector<OptimizerSettings> groups = toy::groups();
  const uint64_t before = testing::allocations_of_this_thread();
  rig.offloader->update({groups, 4, 0});
  EXPECT_EQ(testing::allocations_of_this_thread() - before, 0u);
}

TEST(Commit, CountsItsMemoryAndItsDiskInThePlan) {
  const ScratchFolder folder;
  const CommitCase c{.cached_quarters = 0};
  CommitRig rig(c, folder.path());
  const MemoryPlan& plan = rig.offloader->plan();
  uint64_t ledger = 0;
  for (const TierUse& use : rig.offloader->budget().ledger()) ledger += use.bytes;
  EXPECT_EQ(ledger, plan.host_bytes);
  EXPECT_EQ(plan.host_bytes, plan.host_minimum_bytes);
  uint64_t tiles = rig.offloader->state().record_tile_count();
  EXPECT_EQ(plan.record_file_bytes, (2 * tiles + plan.ring_slots) * RecordLayout{}.tile_bytes());
  uint64_t on_disk = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().filename() == "records.tier") on_disk += entry.file_size();
  }
  EXPECT_GE(on_disk, plan.record_file_bytes);
  EXPECT_LE(on_disk, plan.record_file_bytes + 4096);
}

TEST(Commit, KeepsItsFrozenParametersFromBeingLoadedAnew) {
  const ScratchFolder folder;
  CommitRig rig({.parameters = Placement::nvme, .with_frozen = true}, folder.path());
  const MemoryPlan& plan = rig.offloader->plan();
  ASSERT_GT(plan.parameter_chunks, plan.record_chunks + 1) << "one chunk is no test";
  TrainingState& state = rig.offloader->state();
  std::vector<std::byte> frozen;
  state.export_frozen(
      [&](std::span<const std::byte> bytes) { frozen.insert(frozen.end(), bytes.begin(), bytes.end()); });
  const auto load_frozen = [&] {
    size_t taken = 0;
    state.import_frozen([&](std::span<std::byte> to) {
      std::copy_n(frozen.begin() + static_cast<ptrdiff_t>(taken), to.size(), to.begin());
      taken += to.size();
    });
  };
  load_frozen();  // before there is a commit
  rig.offloader->commits().begin(step_info(0));
  rig.offloader->commits().finish();
  const std::vector<std::byte> before = rig.state();
  const auto refused = [](const std::function<void()>& load) {
    try {
      load();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::misuse && error.parts().subject == "commit 1";
    }
    return false;
  };
  EXPECT_TRUE(refused(load_frozen));
  EXPECT_TRUE(refused([&] { state.initialise([](TensorId, uint64_t, std::span<float>) {}); }));
  EXPECT_TRUE(rig.offloader->has_whole_state());
  EXPECT_EQ(rig.state(), before);
}

TEST(Commit, SaysWhyARunKeepsNoCommits) {
  const auto reason = [](CommitCase c, Placement states) {
    const std::vector<TensorSpec> specs = toy::tensors(DataType::bf16, c.with_frozen);
    const FlatSpace space(specs, kTileElements);
    OffloadOptions options;
    options.parameters = c.parameters;
    options.states = states;
    options.durable = c.durable;
    return reason_without_commits(space, options);
  };
  EXPECT_EQ(reason({}, Placement::nvme), "");
  EXPECT_EQ(reason({.parameters = Placement::nvme, .with_frozen = true}, Placement::nvme), "");
  EXPECT_NE(reason({.with_frozen = true}, Placement::nvme).find("frozen"), std::string::npos);
  EXPECT_NE(reason({.durable = false}, Placement::nvme).find("in place"), std::string::npos);
  EXPECT_NE(reason({}, Placement::cpu).find("not on nvme"), std::string::npos);
  const ScratchFolder folder;
  CommitRig rig({.durable = false}, folder.path());
  EXPECT_FALSE(rig.offloader->commits().are_kept());
  EXPECT_NE(rig.offloader->commits().why_not_kept(), "");
}

// The second commit begins where an update ends, in the backward pass of the next step. That the first one
// has failed meanwhile is no failure of that step.
TEST(Commit, ThatFailsBeforeOneThatWasPutOffIsToldOfBetweenSteps) {
  io::Fault fault;
  fault.operation = io::OpKind::write;
  fault.error = EROFS;  // for which no other slot is tried
  io::FaultPlan plan({fault});
  CommitGate gate;
  CommitCase c{.cached_quarters = 4, .mode = UpdateMode::next_forward};
  c.decorate = decorate_commits(c, [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    auto failing = std::make_unique<io::FaultEngine>(std::move(engine), plan);
    return std::make_unique<GateEngine>(std::move(failing), [&gate] { gate(); });
  });
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  rig.step(1);
  rig.offloader->commits().begin(step_info(1));
  gate.watch(rig.offloader.get());
  gate.open(false);
  rig.step(2);
  rig.offloader->commits().begin(step_info(2));
  EXPECT_NO_THROW(rig.step(3));
  EXPECT_GT(gate.waits_seen(), 0u);
  testing::expect_error(ErrorKind::io, {"EROFS"}, [&] { rig.offloader->commits().finish(); });
  EXPECT_EQ(rig.offloader->commits().finish(), 0u);
  rig.step(4);
  EXPECT_EQ(rig.state(), states_without_commits({}, 4)[4]);
}

}  // namespace
}  // namespace terrace::commit_test
