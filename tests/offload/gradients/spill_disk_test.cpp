// The disks under spilled gradients: too small, which is said before anything is allocated, and several.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>

#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>

#include "offload/gradients/spill_rig.h"
#include "support/expect_error.h"

namespace terrace::spill_disk_test {
namespace {

namespace fs = std::filesystem;

// File systems of their own, of a given size each; mounting takes root.
class SmallDisks {
 public:
  SmallDisks(size_t count, uint64_t bytes_each) {
    for (size_t d = 0; d < count; ++d) {
      const fs::path path = folder_.path() / std::to_string(d);
      fs::create_directory(path);
      const std::string size = fmt::format("size={}", round_up(bytes_each, 4096));
      if (mount("none", path.c_str(), "tmpfs", 0, size.c_str()) != 0) return;
      paths_.push_back(path);
    }
    are_there_ = true;
  }
  ~SmallDisks() {
    for (const fs::path& path : paths_) umount(path.c_str());
  }
  SmallDisks(const SmallDisks&) = delete;
  SmallDisks& operator=(const SmallDisks&) = delete;
  explicit operator bool() const { return are_there_; }
  const std::vector<fs::path>& paths() const { return paths_; }

 private:
  ScratchFolder folder_;
  std::vector<fs::path> paths_;
  bool are_there_ = false;
};

constexpr uint64_t kLabels = 64 * kKiB;  // marks, locks, labels: whatever a tier has beside its blocks

MemoryPlan plan_of(const CommitCase& c) {
  const FlatSpace space(toy::tensors(c.type, c.with_frozen), c.chunk_elements);
  const ScratchFolder folder;
  const std::vector<TensorUse> uses = toy::trace(toy::tensors(c.type, c.with_frozen), c.accumulation);
  return plan_memory(space, uses, toy_options(c, space, uses, {folder.path()}));
}

// With fp32 accumulators, so that they are a good part of what the disk must hold.
CommitCase accumulating() {
  CommitCase c{.parameters = Placement::nvme, .accumulation = 2, .durable = false};
  c.host_budget = spill_all;
  return c;
}

void expect_refused(const CommitCase& c, const std::vector<fs::path>& paths, uint64_t needed) {
  const FlatSpace space(toy::tensors(c.type, c.with_frozen), c.chunk_elements);
  const std::vector<TensorUse> uses = toy::trace(toy::tensors(c.type, c.with_frozen), c.accumulation);
  const OffloadOptions options = toy_options(c, space, uses, paths);
  MemoryLog log;
  Workers workers(1);
  SimulatedDevice device({options.device_budget_bytes});
  testing::expect_error(
      ErrorKind::capacity,
      {"there is no room for what lives on nvme", paths.front().string(), fmt::format("{} bytes", needed),
       "are free", "raise OffloadOptions::host_budget_bytes", "no gradient is spilled"},
      [&] { Offloader(space, options, uses, device, workers, log); });
  EXPECT_EQ(device.peak_bytes(), 0u) << "memory was taken before the disk was looked at";
  for (const fs::path& path : paths) EXPECT_TRUE(fs::is_empty(path));
}

TEST(SpillDisk, TooSmallForTheGradientsIsSaidBeforeAnythingIsAllocated) {
  const CommitCase c = accumulating();
  const MemoryPlan plan = plan_of(c);
  ASSERT_GT(plan.gradient_file_bytes, 2 * kLabels);
  const SmallDisks disks(1, plan.file_bytes() - plan.gradient_file_bytes + kLabels);
  if (!disks) GTEST_SKIP() << "mounting a tmpfs needs root";
  expect_refused(c, disks.paths(), plan.file_bytes());
  // It is the gradients that have no room: with the memory that the message names the run fits.
  CommitCase held = c;
  held.host_budget = spill_nothing;
  CommitRig rig(held, disks.paths());
  rig.step(1);
}

TEST(SpillDisk, SeveralThatAreTooSmallTogetherAreNamedTogether) {
  const CommitCase c = accumulating();
  const MemoryPlan plan = plan_of(c);
  const SmallDisks disks(2, (plan.file_bytes() - plan.gradient_file_bytes + kLabels) / 2);
  if (!disks) GTEST_SKIP() << "mounting a tmpfs needs root";
  expect_refused(c, disks.paths(), plan.file_bytes());
}

// A run that died has left its tier: the next one takes its place, or takes it up.
TEST(SpillDisk, RoomThatATierTakesUpAlreadyCounts) {
  CommitCase c = accumulating();
  c.durable = true;
  const MemoryPlan plan = plan_of(c);
  const SmallDisks disks(1, plan.file_bytes() + 4 * kLabels);
  if (!disks) GTEST_SKIP() << "mounting a tmpfs needs root";
  std::vector<std::byte> state;
  {
    CommitRig rig(c, disks.paths());
    rig.step(1);
    rig.offloader->commits().begin(step_info(1));
    rig.offloader->commits().finish();
    state = rig.state();
  }
  c.start = TierStart::resume;
  {
    CommitRig rig(c, disks.paths());
    EXPECT_EQ(rig.state(), state);
    rig.step(2);
  }
  c.start = TierStart::fresh;
  c.discard = true;
  CommitRig rig(c, disks.paths());
  rig.step(1);
  EXPECT_EQ(rig.state(), state);
}

// Head-room of the states, by which the share of a path may grow, is no reason to have none for gradients.
TEST(SpillDisk, TwoThatHaveJustEnoughTogetherDo) {
  const CommitCase c = accumulating();
  const MemoryPlan plan = plan_of(c);
  const SmallDisks disks(2, plan.file_bytes() / 2 + kLabels);
  if (!disks) GTEST_SKIP() << "mounting a tmpfs needs root";
  const auto expected = states_without_commits(c, 2);
  CommitRig rig(c, disks.paths());
  rig.step(1);
  rig.step(2);
  EXPECT_EQ(rig.state(), expected[2]);
}

TEST(SpillDisk, SeveralShareTheGradientsAndChangeNoBit) {
  size_t runs = 0;  // in one mode after the other
  for (CommitCase c : spilling_cases()) {
    const UpdateMode mode = kUpdateModes[runs++ % std::size(kUpdateModes)];
    if (may_run(c, mode)) c.mode = mode;
    SCOPED_TRACE(text_of(c));
    const auto expected = states_without_commits(c, 3);
    const ScratchFolder folder;
    std::vector<fs::path> paths;
    for (const char* name : {"a", "b", "c"}) {
      paths.push_back(folder.path() / name);
      fs::create_directory(paths.back());
    }
    GradientRequests requests;
    c.decorate = requests.decorator();
    CommitRig rig(c, paths);
    for (uint64_t step = 1; step <= 3; ++step) rig.step(step);
    EXPECT_EQ(rig.state(), expected[3]);
    const auto by_file = requests.totals().bytes_by_file;
    ASSERT_EQ(by_file.size(), 3u);
    for (const fs::path& path : paths)
      EXPECT_GT(by_file.at((path / "terrace-tier" / "grads.tier").string()), 0u) << path;
  }
}

}  // namespace
}  // namespace terrace::spill_disk_test
