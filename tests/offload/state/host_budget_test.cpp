// The host budget changes while a model is trained: no bit of the training does, what has to move is all that
// moves, and the system has its memory back.
#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include <terrace/base/error.h>
#include <terrace/memory/device/simulated_device.h>

#include "memory/host/os_memory.h"
#include "offload/commits/commit_rig.h"

namespace terrace::host_budget_test {
namespace {

// With room for the records of so many chunks.
void keep(CommitRig& rig, uint32_t chunks) {
  rig.offloader->budget().set(rig.offloader->budget().least() +
                              chunks * rig.offloader->plan().record_slot_bytes);
}

uint64_t ledger_bytes(const Offloader& offloader) {
  uint64_t bytes = 0;
  for (const TierUse& use : offloader.budget().ledger()) bytes += use.bytes;
  return bytes;
}

// A step moves exactly the records that are not kept.
void expect_least_traffic(CommitRig& rig, const OffloadCounters& moved, uint32_t kept) {
  const MemoryPlan& plan = rig.offloader->plan();
  uint64_t all = 0;
  for (uint32_t c = 0; c < rig.space.chunk_count(); ++c) {
    if (rig.space.section_of(ChunkId{c}).trainable)
      all += rig.space.chunk(ChunkId{c}).tile_count() * plan.record_layout.tile_bytes();
  }
  // Every chunk of the toy model is one tile.
  EXPECT_EQ(moved.record_read_bytes, all - kept * plan.record_slot_bytes);
  EXPECT_EQ(moved.record_write_bytes, moved.record_read_bytes);
}

TEST(HostBudget, ChangesNoBitAndMovesTheLeastWhateverTheOrderOfChanges) {
  for (const CommitCase& base :
       {CommitCase{.durable = false}, CommitCase{},
        CommitCase{.parameters = Placement::nvme, .with_frozen = true},
        CommitCase{.parameters = Placement::none, .type = DataType::fp32, .accumulation = 3}}) {
    const auto expected = states_without_commits(base, 6);
    for (const bool commits : {false, true}) {
      if (commits && !base.durable) continue;
      CommitCase c = base;
      c.cached_quarters = 4;
      const ScratchFolder folder;
      CommitRig rig(c, folder.path());
      const uint32_t most = rig.offloader->plan().host_record_slots;
      ASSERT_EQ(most, rig.offloader->plan().record_chunks);
      const std::array<uint32_t, 6> kept = {most / 2, 0, most, most - 1, 3, most};
      for (uint64_t step = 1; step <= kept.size(); ++step) {
        if (commits) rig.offloader->commits().begin(step_info(step - 1));
        const OffloadCounters before = rig.offloader->report().counters();
        keep(rig, kept[step - 1]);
        rig.step(step);
        const OffloadCounters moved = rig.offloader->report().counters() - before;
        expect_least_traffic(rig, moved, kept[step - 1]);
        const uint32_t had = step == 1 ? most : kept[step - 2];
        const uint64_t slot = rig.offloader->plan().record_slot_bytes;
        EXPECT_EQ(moved.cache_read_bytes, (std::max(kept[step - 1], had) - had) * slot);
        // A commit that has just written them leaves nothing to be written.
        EXPECT_EQ(moved.cache_write_bytes, commits ? 0 : (had - std::min(kept[step - 1], had)) * slot);
      }
      EXPECT_EQ(rig.state(), expected[6]) << (commits ? "with commits" : "without");
    }
  }
}

TEST(HostBudget, LeavesACommitThatARunWithAnotherBudgetTakesUp) {
  CommitCase c;
  c.cached_quarters = 4;
  const auto expected = states_without_commits(c, 4);
  const ScratchFolder folder;
  {
    CommitRig rig(c, folder.path());
    rig.step(1);
    rig.offloader->commits().begin(step_info(1));
    keep(rig, 2);
    rig.step(2);
    rig.offloader->commits().begin(step_info(2));
    keep(rig, 5);
    rig.step(3);
    keep(rig, 1);  // newer than the last commit, and written: the commit must not see it
  }
  c.start = TierStart::resume;
  c.cached_quarters = 1;
  CommitRig rig(c, folder.path());
  EXPECT_EQ(rig.offloader->commits().taken_up_info(), step_info(2));
  EXPECT_EQ(rig.state(), expected[2]);
  keep(rig, 0);
  rig.step(3);
  rig.step(4);
  EXPECT_EQ(rig.state(), expected[4]);
}

TEST(HostBudget, WritesNothingTwiceAndCommitsWhatChangedAlone) {
  CommitCase c;
  c.cached_quarters = 4;
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  const uint64_t slot = rig.offloader->plan().record_slot_bytes;
  const auto committed = [&] {
    const uint64_t before = rig.offloader->report().counters().commit_write_bytes;
    rig.offloader->commits().begin("");
    rig.offloader->commits().finish();
    return rig.offloader->report().counters().commit_write_bytes - before;
  };
  keep(rig, 4);
  keep(rig, 6);
  EXPECT_EQ(committed(), 4 * slot);  // two were written before and have been read since
  EXPECT_EQ(committed(), 0u);
  rig.step(1);
  EXPECT_EQ(committed(), 6 * slot);
  keep(rig, 3);
  keep(rig, 6);
  EXPECT_EQ(committed(), 0u);
}

TEST(HostBudget, RefusesLessThanTheRunNeedsAndChangesNothing) {
  CommitCase c;
  c.durable = false;
  const auto expected = states_without_commits(c, 2);
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  rig.step(1);
  const OffloadCounters before = rig.offloader->report().counters();
  try {
    rig.offloader->budget().set(rig.offloader->budget().least() - 1);
    FAIL() << "less than the least was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
  }
  rig.step(2);
  const OffloadCounters moved = rig.offloader->report().counters() - before;
  EXPECT_EQ(moved.cache_read_bytes + moved.cache_write_bytes, 0u);
  expect_least_traffic(rig, moved, rig.offloader->plan().host_record_slots);
  EXPECT_EQ(rig.state(), expected[2]);
}

TEST(HostBudget, IsWhatTheRunThenNeedsWhereAChunkCannotComeBack) {
  CommitCase c;
  c.cached_quarters = 4;
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  const HostBudget& budget = rig.offloader->budget();
  const uint64_t planned = budget.in_force();
  keep(rig, 0);
  const std::filesystem::path records = folder.path() / "terrace-tier" / "records.tier";
  std::vector<char> flipped(std::filesystem::file_size(records), 5);
  std::ofstream(records, std::ios::in | std::ios::binary).write(flipped.data(), std::ssize(flipped));
  try {
    rig.offloader->budget().set(planned);
    FAIL() << "flipped bytes came back";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
  }
  EXPECT_EQ(budget.resident_chunks(), 0u);
  EXPECT_EQ(budget.in_force(), budget.least());
}

// The ledger and the operating system agree.
TEST(HostBudget, IsNeverMoreThanWasPlanned) {
  CommitCase c;
  c.cached_quarters = 4;
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  const uint64_t planned = rig.offloader->budget().in_force();
  rig.offloader->budget().set(2 * planned);
  EXPECT_EQ(rig.offloader->budget().in_force(), planned);
  EXPECT_FALSE(rig.offloader->budget().has_changed());
}

TEST(HostBudget, GivesItsPagesBackToTheSystem) {
  const std::vector<TensorSpec> specs = {{"weight", {4 * 1024 * 1024}}};
  const FlatSpace space(specs, 512 * 1024);  // eight chunks with records of 6 MiB
  OffloadOptions options;
  const ScratchFolder folder;
  options.parameters = Placement::cpu;
  options.states = Placement::nvme;
  options.state_paths = {{folder.path()}};
  options.host_budget_bytes = kGiB;
  options.device_budget_bytes = 64 * kMiB;
  options.io.kind = io::choose_engine(std::nullopt).kind;
  MemoryLog log;
  Workers workers(2);
  SimulatedDevice device({options.device_budget_bytes});
  Offloader offloader(space, options, {}, device, workers, log);
  offloader.state().initialise(
      [](TensorId, uint64_t, std::span<float> values) { std::fill(values.begin(), values.end(), 0.5f); });
  const uint64_t slot = offloader.plan().record_slot_bytes;
  ASSERT_EQ(offloader.plan().host_record_slots, 8u);
  EXPECT_FALSE(offloader.budget().has_changed());
  const auto expect_use = [&](uint64_t backed, uint64_t ledger, uint64_t fallen) {
    EXPECT_EQ(ledger - ledger_bytes(offloader), fallen);
    EXPECT_EQ(backed - huge_mappings_bytes(), fallen);
    EXPECT_EQ(offloader.budget().peak_bytes(), ledger);
  };
  // Pages that are registered with an engine would stay where they are.
  EXPECT_LE(pinned_bytes(), offloader.budget().least() + 2 * kHugePageBytes);
  const uint64_t backed = huge_mappings_bytes(), ledger = ledger_bytes(offloader);
  EXPECT_EQ(ledger, offloader.plan().host_bytes);
  offloader.budget().set(offloader.budget().least() + 3 * slot + slot / 2);
  expect_use(backed, ledger, 5 * slot);
  offloader.budget().set(offloader.budget().least());
  expect_use(backed, ledger, 8 * slot);
  offloader.budget().set(options.host_budget_bytes);
  expect_use(backed, ledger, 0);
}

}  // namespace
}  // namespace terrace::host_budget_test
