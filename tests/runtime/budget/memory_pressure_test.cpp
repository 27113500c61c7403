// When memory is given back and taken up again, on cgroups that are folders.
#include <terrace/runtime/budget/memory_pressure.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <terrace/base/units.h>

#include "runtime/budget/fake_cgroup.h"

namespace terrace::memory_pressure_test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kLimit = 1600 * kMiB;  // a reserve of 100 MiB

CgroupMemory left(uint64_t bytes, double stalled = 0) {
  return {"/job", kLimit, kLimit - bytes, kLimit - bytes, stalled};
}

uint32_t kept_after(PressureRule& rule, const CgroupMemory& memory, uint32_t kept, uint64_t now_ns) {
  const auto decision = rule.decide(memory, {kept, 40, 10 * kMiB}, now_ns);
  return decision ? decision->keep_chunks : kept;
}

TEST(MemoryPressure, ReadsTheCgroupOfThisProcess) {
  FakeCgroup machine;
  EXPECT_FALSE(read_cgroup_memory(machine.root()));
  machine.set(kGiB, 700 * kMiB, 100 * kMiB, 2.5);
  const std::optional<CgroupMemory> memory = read_cgroup_memory(machine.root());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->cgroup, "/job/step");
  EXPECT_EQ(memory->limit_bytes, kGiB);
  EXPECT_EQ(memory->current_bytes, 700 * kMiB);
  EXPECT_EQ(memory->held_bytes, 600 * kMiB);  // without the pages of files
  EXPECT_EQ(memory->stalled_percent, 2.5);
  EXPECT_EQ(memory->left_bytes(), 424 * kMiB);
}

TEST(MemoryPressure, CountsNothingWhereThereIsNoLimit) {
  FakeCgroup machine;
  machine.set(kGiB, 700 * kMiB, 0, 50);
  machine.write("memory.max", "max");
  EXPECT_FALSE(read_cgroup_memory(machine.root()));
  machine.write("memory.high", std::to_string(kGiB / 2));
  EXPECT_EQ(read_cgroup_memory(machine.root())->limit_bytes, kGiB / 2);
  machine.write("memory.current", "nonsense");
  EXPECT_FALSE(read_cgroup_memory(machine.root()));
}

TEST(MemoryPressure, TakesTheAncestorThatHasTheLeastLeft) {
  FakeCgroup machine;
  machine.set(kGiB, 700 * kMiB, 0, 0);
  machine.write("../memory.max", std::to_string(2 * kGiB));
  machine.write("../memory.current", std::to_string(2 * kGiB - 5));
  const std::optional<CgroupMemory> memory = read_cgroup_memory(machine.root());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->cgroup, "/job");
  EXPECT_EQ(memory->left_bytes(), 5u);
  EXPECT_EQ(memory->stalled_percent, 0);  // a kernel that does not count them
}

TEST(MemoryPressure, ReadsACgroupOfVersion1) {
  ScratchFolder scratch;
  const std::filesystem::path& root = scratch.path();
  const std::filesystem::path memory_of = root / "sys/fs/cgroup/memory";
  std::filesystem::create_directories(root / "proc/self");
  std::filesystem::create_directories(memory_of / "job/step");
  std::ofstream(root / "proc/self/cgroup") << "9:name=memory:/no\n5:cpu,memory:/job/step\n4:cpuset:/\n0::/\n";
  const auto write = [&](const char* file, const std::string& text) {
    std::ofstream(memory_of / "job" / file) << text << "\n";
  };
  // Its own has the number that stands for none.
  std::ofstream(memory_of / "job/step/memory.limit_in_bytes") << "9223372036854771712\n";
  std::ofstream(memory_of / "job/step/memory.usage_in_bytes") << 500 * kMiB << "\n";
  EXPECT_FALSE(read_cgroup_memory(root));
  write("memory.limit_in_bytes", std::to_string(kGiB));
  write("memory.usage_in_bytes", std::to_string(700 * kMiB));
  write("memory.stat", "active_file 1\ninactive_file 1\ntotal_inactive_file " + std::to_string(60 * kMiB) +
                           "\ntotal_active_file " + std::to_string(40 * kMiB));
  const std::optional<CgroupMemory> memory = read_cgroup_memory(root);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->cgroup, "/job");
  EXPECT_EQ(memory->limit_bytes, kGiB);
  EXPECT_EQ(memory->held_bytes, 600 * kMiB);
  EXPECT_EQ(memory->stalled_percent, 0);
}

TEST(PressureRule, GivesBackWhatIsMissingToTwoReserves) {
  PressureRule rule;
  EXPECT_EQ(kept_after(rule, left(100 * kMiB), 40, 0), 40u);
  EXPECT_EQ(kept_after(rule, left(99 * kMiB), 40, 0), 29u);  // 101 MiB, in chunks of 10
  EXPECT_EQ(kept_after(rule, left(0), 40, 1), 20u);          // and again at once
  EXPECT_EQ(kept_after(rule, left(0), 7, 2), 0u);            // no more than there is
  EXPECT_FALSE(rule.decide(left(0), {0, 40, 10 * kMiB}, 3));
}

TEST(PressureRule, GivesBackAnEighthWhereTasksStandStillAndTheLimitIsNear) {
  PressureRule rule;
  EXPECT_EQ(kept_after(rule, left(100 * kMiB, 10), 40, 0), 40u);
  CgroupMemory full = left(500 * kMiB, 10);
  EXPECT_EQ(kept_after(rule, full, 40, 0), 40u);  // stalls for another reason
  full.current_bytes = kLimit - 99 * kMiB;        // the rest are pages of files
  EXPECT_EQ(kept_after(rule, full, 40, 0), 35u);
  EXPECT_EQ(kept_after(rule, full, 35, 10 * kSecondNs - 1), 35u);  // the average has not forgotten yet
  EXPECT_EQ(kept_after(rule, full, 35, 10 * kSecondNs), 30u);
  full.stalled_percent = 9;
  EXPECT_EQ(kept_after(rule, full, 30, 30 * kSecondNs), 30u);
}

TEST(PressureRule, TakesUpAgainSlowlyAndNeverMoreThanLeavesTwoReserves) {
  PressureRule rule;
  uint64_t now = kSecondNs;
  ASSERT_EQ(kept_after(rule, left(0), 40, now), 20u);
  const CgroupMemory roomy = left(800 * kMiB);
  EXPECT_EQ(kept_after(rule, roomy, 20, now + 30 * kSecondNs - 1), 20u);
  EXPECT_EQ(kept_after(rule, roomy, 20, now += 30 * kSecondNs), 25u);
  EXPECT_EQ(kept_after(rule, roomy, 25, now + kSecondNs), 25u);
  EXPECT_EQ(kept_after(rule, left(229 * kMiB), 25, now += 30 * kSecondNs), 27u);
  EXPECT_EQ(kept_after(rule, left(209 * kMiB), 27, now += 60 * kSecondNs), 27u);
  // A stall in between begins the waiting anew.
  EXPECT_EQ(kept_after(rule, left(800 * kMiB, 1), 27, now), 27u);
  EXPECT_EQ(kept_after(rule, roomy, 27, now + 29 * kSecondNs), 27u);
  EXPECT_EQ(kept_after(rule, roomy, 38, now + 30 * kSecondNs), 40u);  // no more than may be
}

TEST(MemoryPressure, LooksTenTimesASecondAtMost) {
  FakeCgroup machine;
  FakeClock clock;
  MemoryPressure pressure(machine.root(), clock);
  const HostRecords records{40, 40, 10 * kMiB};
  EXPECT_FALSE(pressure.look(records));  // no limit
  machine.set(kLimit, kLimit, 0, 0);
  EXPECT_FALSE(pressure.look(records));
  clock.advance(kSecondNs / 10);
  const std::optional<PressureDecision> decision = pressure.look(records);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->keep_chunks, 20u);
  EXPECT_THAT(decision->reason, ::testing::HasSubstr("the cgroup /job/step holds 1.56 GiB of the 1.56 GiB"));
}

}  // namespace
}  // namespace terrace::memory_pressure_test
