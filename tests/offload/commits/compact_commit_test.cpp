// Commits of compact state: records and parameters of one step and never of two, wherever the parameters
// live.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>

#include "offload/commits/commit_rig.h"
#include "support/expect_error.h"
#include "support/fault_engine.h"
#include "support/sanitized.h"

namespace terrace::compact_commit_test {
namespace {

using testing::expect_error;

constexpr Placement kPlacements[] = {Placement::none, Placement::cpu, Placement::nvme};

void flip(const std::filesystem::path& file, uint64_t offset) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(static_cast<std::streamoff>(offset));
  const char value = static_cast<char>(bytes.get() ^ 1);
  bytes.seekp(static_cast<std::streamoff>(offset));
  bytes.put(value);
}

TEST(CompactCommit, ChangesNoBitHoweverOftenItIsTaken) {
  const auto expected = states_without_commits({}, 4);
  for (const Placement parameters : kPlacements) {
    for (const uint32_t quarters : {0u, 2u, 4u}) {
      for (const uint64_t cadence : {1u, 3u}) {
        CommitCase c{.parameters = parameters, .cached_quarters = quarters, .layout = kCompact};
        const ScratchFolder folder;
        CommitRig rig(c, folder.path());
        rig.offloader->commits().begin("start");
        for (uint64_t step = 1; step <= 4; ++step) {
          rig.step(step);
          if (step % cadence == 0) rig.offloader->commits().begin(step_info(step));
        }
        EXPECT_EQ(rig.state(), expected[4]) << name_of(parameters) << " " << quarters;
        EXPECT_EQ(rig.offloader->commits().finish(), 1 + 4 / cadence);
      }
    }
  }
}

TEST(CompactCommit, IsGoneOnFromWhateverThePlacement) {
  const auto expected = states_without_commits({}, 5);
  for (const Placement before : kPlacements) {
    for (const Placement after : kPlacements) {
      for (const uint32_t quarters : {0u, 3u}) {
        const ScratchFolder folder;
        CommitCase c{.parameters = before, .cached_quarters = 2, .layout = kCompact};
        {
          CommitRig rig(c, folder.path());
          rig.offloader->commits().begin(step_info(0));
          for (uint64_t step = 1; step <= 3; ++step) {
            rig.step(step);
            rig.offloader->commits().begin(step_info(step));
          }
          rig.offloader->commits().finish();
          rig.step(4);
          rig.step(5);
        }
        c.parameters = after;
        c.cached_quarters = quarters;
        c.start = TierStart::resume;
        CommitRig rig(c, folder.path());
        SCOPED_TRACE(fmt::format("{} then {}, {}/4", name_of(before), name_of(after), quarters));
        EXPECT_EQ(rig.offloader->commits().taken_up_info(), step_info(3));
        EXPECT_EQ(rig.state(), expected[3]);
        // What was read is what is there: a commit has nothing to write.
        rig.offloader->commits().begin(step_info(3));
        rig.offloader->commits().finish();
        EXPECT_EQ(rig.offloader->report().counters().commit_write_bytes, 0u);
        rig.step(4);
        rig.offloader->commits().begin(step_info(4));
        rig.step(5);
        EXPECT_EQ(rig.state(), expected[5]);
      }
    }
  }
}

TEST(CompactCommit, IsGoneOnFromWheneverUpdatesRun) {
  const auto expected = states_without_commits({}, 6);
  for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
      for (const uint32_t quarters : {0u, 2u, 4u}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}/4", name_of(mode), name_of(parameters), quarters));
        const ScratchFolder folder;
        CommitCase c{.parameters = parameters, .cached_quarters = quarters, .layout = kCompact};
        c.mode = mode;
        {
          CommitRig rig(c, folder.path());
          for (uint64_t step = 1; step <= 4; ++step) {
            rig.step(step);
            rig.offloader->commits().begin(step_info(step));
          }
          EXPECT_EQ(rig.offloader->commits().finish(), 4u);
          rig.step(5);
          rig.step(6);
        }
        c.start = TierStart::resume;
        CommitRig rig(c, folder.path());
        EXPECT_EQ(rig.offloader->commits().taken_up_info(), step_info(4));
        EXPECT_EQ(rig.state(), expected[4]);
        for (uint64_t step = 5; step <= 6; ++step) rig.step(step);
        EXPECT_EQ(rig.state(), expected[6]);
      }
    }
  }
}

// The commit writes nothing until the update waits for it: what it takes of parameters is what they were.
void expect_commit_of_its_moment(CommitCase c) {
  const auto expected = states_without_commits({}, 4);
  CommitGate gate;
  c.layout = kCompact;
  c.decorate = decorate_commits(c, [&](std::unique_ptr<io::Engine> engine) {
    return std::make_unique<GateEngine>(std::move(engine), [&gate] { gate(); });
  });
  const ScratchFolder folder;
  {
    CommitRig rig(c, folder.path());
    if (c.cached_parameters) {
      EXPECT_EQ(rig.offloader->plan().host_param_slots, *c.cached_parameters);
    }
    train_past_commit(rig, gate);
    EXPECT_EQ(rig.state(), expected[4]);
    if (c.parameters == Placement::cpu || c.cached_parameters) {
      EXPECT_GT(gate.waits_seen(), 0u);
    }
  }
  expect_commit(c, folder.path(), 2, expected);
}

TEST(CompactCommit, IsTheStateOfItsMomentThoughTheUpdateOvertakesIt) {
  for (const Placement parameters : kPlacements) {
    for (const uint32_t quarters : {0u, 1u, 2u, 3u, 4u}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(parameters), quarters));
      expect_commit_of_its_moment({.parameters = parameters, .cached_quarters = quarters});
    }
  }
}

TEST(CompactCommit, IsTheStateOfItsMomentThoughAnUpdateBesideTheStepOvertakesIt) {
  for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const Placement parameters : {Placement::cpu, Placement::nvme}) {
      for (const uint32_t quarters : {0u, 2u, 4u}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(mode), name_of(parameters), quarters));
        CommitCase c{.parameters = parameters, .cached_quarters = quarters};
        c.mode = mode;
        expect_commit_of_its_moment(c);
      }
    }
  }
}

// The update and the commit both write parameters: it must leave the commit the slots that it needs.
TEST(CompactCommit, GetsTheSlotsItNeedsWhereSomeParametersAreCached) {
  for (const UpdateMode mode :
       {UpdateMode::after_backward, UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const uint32_t cached : {1u, 4u, 8u, 12u}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(mode), cached));
      CommitCase c{.parameters = Placement::nvme};
      c.cached_parameters = cached;
      c.mode = mode;
      expect_commit_of_its_moment(c);
    }
  }
}

TEST(CompactCommit, WritesWhatIsNewerAndNothingElse) {
  for (const Placement parameters : {Placement::none, Placement::cpu}) {
    const ScratchFolder folder;
    CommitRig rig({.parameters = parameters, .cached_quarters = 3, .layout = kCompact}, folder.path());
    const auto commit = [&] {
      const OffloadCounters before = rig.offloader->report().counters();
      rig.offloader->commits().begin("");
      rig.offloader->commits().finish();
      return (rig.offloader->report().counters() - before).commit_write_bytes;
    };
    const uint64_t all = rig.cached_record_bytes() + 2 * rig.trainable_elements();
    EXPECT_EQ(commit(), all);
    EXPECT_EQ(commit(), 0u);
    rig.step(1);
    EXPECT_EQ(commit(), all);
    rig.offloader->begin_step();
    toy::run_micro_batch(*rig.offloader, rig.specs, 0);
    rig.offloader->abandon_step();
    EXPECT_EQ(commit(), 0u);
    rig.step(2);
    rig.step(3);
    EXPECT_EQ(commit(), all);
  }
}

// Whichever write of a commit fails: the next commit writes again what this one could not.
TEST(CompactCommit, IsWholeAfterOneThatFailed) {
  const auto expected = states_without_commits({}, 2);
  constexpr uint64_t kStep = testing::kSanitized ? 4 : 1;
  for (const Placement parameters : kPlacements) {
    uint64_t failures = 0;
    for (uint64_t failing = 0; failing < 12; failing += kStep) {
      SCOPED_TRACE(fmt::format("{}, transfer {}", name_of(parameters), failing));
      uint64_t first = io::kEveryIndex - 1;
      io::Fault fault;
      fault.error = EROFS;  // for which no other slot is tried
      const ScratchFolder folder;
      CommitCase c{.parameters = parameters, .cached_quarters = 4, .layout = kCompact};
      for (const bool fails : {false, true}) {  // the first run says where the second one fails
        std::filesystem::remove_all(folder.path() / "terrace-tier");
        fault.index = fails ? first + failing : io::kEveryIndex - 1;
        io::FaultPlan plan({fault});
        c.decorate = [&](std::unique_ptr<io::Engine> engine) {
          return std::make_unique<io::FaultEngine>(std::move(engine), plan);
        };
        CommitRig rig(c, folder.path());
        rig.step(1);
        rig.offloader->commits().begin(step_info(1));
        rig.offloader->commits().finish();
        rig.step(2);
        first = plan.transfers();
        try {
          rig.offloader->commits().begin(step_info(2));
          rig.offloader->commits().finish();
        } catch (const Error&) {
          ++failures;
        }
        rig.offloader->commits().begin(step_info(2));
        rig.offloader->commits().finish();
      }
      c.decorate = nullptr;
      c.start = TierStart::resume;
      EXPECT_EQ(CommitRig(c, folder.path()).state(), expected[2]);
    }
    EXPECT_EQ(failures, 12 / kStep) << name_of(parameters);
  }
}

TEST(CompactCommit, CountsItsMemoryAndItsDiskInThePlan) {
  for (const Placement parameters : kPlacements) {
    for (const uint32_t retained : {0u, 2u}) {
      const ScratchFolder folder;
      CommitCase c{.parameters = parameters, .cached_quarters = 1, .retained = retained, .layout = kCompact};
      const CommitRig rig(c, folder.path());
      const MemoryPlan& plan = rig.offloader->plan();
      uint64_t ledger = 0;
      for (const TierUse& use : rig.offloader->budget().ledger()) ledger += use.bytes;
      EXPECT_EQ(ledger, plan.host_bytes);
      const auto size_of = [&](const char* name) {
        return std::filesystem::file_size(folder.path() / "terrace-tier" / name);
      };
      const uint64_t parameter_bytes = 2 * rig.trainable_elements();
      EXPECT_EQ(plan.parameter_file_bytes,
                (2 + retained) * parameter_bytes + 4 * kTileElements * sizeof(Bf16));
      EXPECT_EQ(size_of("params.tier"), plan.parameter_file_bytes + 4096);
      EXPECT_EQ(size_of("records.tier"), plan.record_file_bytes + 4096);
      EXPECT_EQ(rig.offloader->report().tier_file_bytes(),
                plan.parameter_file_bytes + plan.record_file_bytes);
    }
  }
}

TEST(CompactCommit, FindsAFlippedByteOfItsParameters) {
  for (const Placement parameters : kPlacements) {
    const ScratchFolder folder;
    CommitCase c{.parameters = parameters, .cached_quarters = 0, .layout = kCompact};
    {
      CommitRig rig(c, folder.path());
      rig.step(1);
      rig.offloader->commits().begin(step_info(1));
    }
    c.start = TierStart::resume;
    const auto expected = states_without_commits({}, 1);
    const std::filesystem::path file = folder.path() / "terrace-tier" / "params.tier";
    uint64_t named = 0, tiles = 0;
    const uint64_t size = std::filesystem::file_size(file) - 4096;
    for (uint64_t offset = 77; offset < size; offset += kTileElements * sizeof(Bf16)) {
      flip(file, offset);
      try {
        CommitRig rig(c, folder.path());
        tiles = rig.offloader->state().record_tile_count();
        EXPECT_EQ(rig.state(), expected[1]) << "byte " << offset;  // of a slot that the commit has not
      } catch (const Error& error) {
        ++named;
        EXPECT_EQ(error.kind(), ErrorKind::corrupt);
        EXPECT_NE(std::string(error.what()).find("params.tier"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("chunk"), std::string::npos) << error.what();
      }
      flip(file, offset);
    }
    EXPECT_EQ(named, tiles) << name_of(parameters);
  }
}

TEST(CompactCommit, IsNotTakenUpByThePlainFormNorTheOtherWayRound) {
  for (const bool compact : {false, true}) {
    const ScratchFolder folder;
    CommitCase c;
    c.layout = compact ? kCompact : RecordLayout{};
    {
      CommitRig rig(c, folder.path());
      rig.offloader->commits().begin(step_info(0));
    }
    CommitCase other = c;
    other.start = TierStart::resume;
    other.layout = compact ? RecordLayout{} : kCompact;
    expect_error(ErrorKind::config, {"compact masters", "whole masters", "record_layout", "checkpoint"},
                 [&] { CommitRig(other, folder.path()); });
    c.start = TierStart::resume;
    EXPECT_EQ(CommitRig(c, folder.path()).offloader->commits().taken_up_info(), step_info(0));
  }
  const ScratchFolder folder;
  CommitCase c{.layout = {MasterForm::whole, 1}, .kind = OptimizerKind::lion};
  {
    CommitRig rig(c, folder.path());
    rig.offloader->commits().begin(step_info(0));
  }
  c = {.start = TierStart::resume};
  expect_error(ErrorKind::config, {"1 moment in fp32", "2 moments in fp32"},
               [&] { CommitRig(c, folder.path()); });
}

TEST(CompactCommit, StaysAsItIsWhilePinned) {
  for (const Placement parameters : kPlacements) {
    for (const uint64_t chunk_elements : {kTileElements, 32 * kTileElements}) {
      const ScratchFolder folder;
      // Nothing is cached: what is on nvme is written over by the steps below.
      CommitRig rig({.parameters = parameters,
                     .chunk_elements = chunk_elements,
                     .cached_quarters = 0,
                     .layout = kCompact},
                    folder.path());
      rig.step(1);
      rig.offloader->commits().begin(step_info(1));
      const std::vector<std::byte> expected = rig.records();
      rig.offloader->commits().finish();
      const std::unique_ptr<PinnedCommit> commit = rig.offloader->commits().pin();
      const uint64_t tile_bytes = commit->record_layout().tile_bytes();
      EXPECT_EQ(tile_bytes, RecordLayout{}.tile_bytes());
      for (uint64_t step = 2; step <= 4; ++step) rig.step(step);
      for (const uint64_t at_once : {1u, 7u, 16u, 1000u}) {
        std::vector<std::byte> all(commit->record_tile_count() * tile_bytes);
        for (uint64_t tile = 0; tile < commit->record_tile_count(); tile += at_once) {
          const uint64_t count = std::min(at_once, commit->record_tile_count() - tile);
          commit->read_records(tile, std::span(all).subspan(tile * tile_bytes, count * tile_bytes));
        }
        EXPECT_EQ(all, expected) << name_of(parameters) << " " << at_once;
      }
      std::ofstream(folder.path() / "states.bin");
      EXPECT_FALSE(commit->clone_records(-1)) << "what is joined cannot be shared";
    }
  }
}

TEST(CompactCommit, IsRetainedWithItsParameters) {
  const auto expected = states_without_commits({}, 6);
  for (const Placement parameters : kPlacements) {
    const ScratchFolder folder;
    CommitCase c{.parameters = parameters, .retained = 1, .layout = kCompact};
    {
      CommitRig rig(c, folder.path());
      for (uint64_t step = 1; step <= 5; ++step) {
        rig.step(step);
        rig.offloader->commits().begin(step_info(step), step == 2);
      }
      rig.offloader->commits().finish();
      EXPECT_EQ(rig.state(), expected[5]);
    }
    // The last one goes; what is left is the retained one.
    for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "terrace-tier")) {
      if (entry.path().extension() == ".manifest") std::filesystem::remove(entry.path());
    }
    c.start = TierStart::resume;
    CommitRig rig(c, folder.path());
    EXPECT_EQ(rig.offloader->commits().taken_up_info(), step_info(2));
    EXPECT_EQ(rig.state(), expected[2]) << name_of(parameters);
    for (uint64_t step = 3; step <= 6; ++step) {
      rig.step(step);
      rig.offloader->commits().begin(step_info(step));
    }
    EXPECT_EQ(rig.state(), expected[6]) << name_of(parameters);
  }
}

}  // namespace
}  // namespace terrace::compact_commit_test
