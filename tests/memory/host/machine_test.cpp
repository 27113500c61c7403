#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/machine.h>
#include <terrace/memory/host/pages.h>

#include "support/scratch_folder.h"

namespace terrace::machine_test {
namespace {

// A /proc and /sys of 16 GiB, four cores and an ordinary user.
class FakeMachine : public ::testing::Test {
 protected:
  FakeMachine() {
    root.write("proc/meminfo",
               "MemTotal:       33554432 kB\nMemFree:         1048576 kB\nMemAvailable:   16777216 kB\n");
    root.write("proc/self/status",
               "Name:\tterrace\nCapEff:\t0000000000000000\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\n");
    root.write("proc/self/limits",
               "Limit                     Soft Limit           Hard Limit           Units     \n"
               "Max locked memory         8388608              unlimited            bytes     \n");
    root.write("proc/self/smaps_rollup",
               "00400000-7fff0000 ---p 00000000 00:00 0 [rollup]\nRss: 2000 kB\nPss: 1500 kB\n");
    root.write("proc/self/cgroup", "0::/\n");
    root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    root.write("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n");
  }
  Machine probe() const { return probe_machine(root.path()); }
  ScratchFolder root;
};

TEST_F(FakeMachine, IsLimitedByWhatIsAvailableWithoutCgroupLimits) {
  const Machine machine = probe();
  EXPECT_EQ(machine.memory_limit.bytes, 16 * kGiB);
  EXPECT_EQ(machine.memory_limit.origin, "MemAvailable of /proc/meminfo");
  EXPECT_EQ(machine.memlock_limit_bytes, 8 * kMiB);
  EXPECT_EQ(machine.cores, (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(machine.huge_page_mode, "madvise");
  EXPECT_TRUE(machine.huge_pages_on_request());
  EXPECT_EQ(machine.huge_page_bytes, 2 * kMiB);
  EXPECT_EQ(machine.page_bytes, page_bytes());
}

TEST_F(FakeMachine, TakesTheLeastLimitOfACgroupV2AndItsAncestors) {
  root.write("proc/self/cgroup", "0::/slice/job\n");
  root.write("sys/fs/cgroup/slice/job/memory.max", "max\n");
  root.write("sys/fs/cgroup/slice/memory.max", "4294967296\n");
  EXPECT_EQ(probe().memory_limit.bytes, 4 * kGiB);
  EXPECT_EQ(probe().memory_limit.origin, "memory.max of cgroup /slice");
  root.write("sys/fs/cgroup/slice/job/memory.max", "1073741824\n");
  EXPECT_EQ(probe().memory_limit.bytes, kGiB);
  EXPECT_EQ(probe().memory_limit.origin, "memory.max of cgroup /slice/job");
  root.write("sys/fs/cgroup/slice/job/memory.max",
             "1099511627776\n");  // more than there is below and available
  EXPECT_EQ(probe().memory_limit.bytes, 4 * kGiB);
}

TEST_F(FakeMachine, ReadsCgroupV1AndIgnoresItsUnlimited) {
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/job\n1:name=systemd:/\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(probe().memory_limit.bytes, 2 * kGiB);
  EXPECT_EQ(probe().memory_limit.origin, "memory.limit_in_bytes of cgroup /job");
}

TEST_F(FakeMachine, FindsTheLimitOfAContainerThatSeesItsCgroupAsTheRoot) {
  root.write("proc/self/cgroup", "4:memory:/docker/0123abcd\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "3221225472\n");
  EXPECT_EQ(probe().memory_limit.bytes, 3 * kGiB);
  root.write("proc/self/cgroup", "0::/../../job\n");
  root.write("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(probe().memory_limit.bytes, kGiB);
}

TEST_F(FakeMachine, HasNoLimitOfLockedMemoryWithTheCapability) {
  root.write("proc/self/status", "CapEff:\t0000000000004000\nCpus_allowed_list:\t0\n");
  EXPECT_FALSE(probe().memlock_limit_bytes.has_value());
  root.write("proc/self/status", "CapEff:\t0000000000008000\nCpus_allowed_list:\t0\n");
  EXPECT_TRUE(probe().memlock_limit_bytes.has_value());
  root.write("proc/self/limits",
             "Max locked memory         unlimited            unlimited            bytes     \n");
  EXPECT_FALSE(probe().memlock_limit_bytes.has_value());
}

TEST_F(FakeMachine, SaysWhenThereAreNoHugePages) {
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_FALSE(probe().huge_pages_on_request());
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "");
  EXPECT_EQ(probe().huge_page_mode, "none");
  EXPECT_FALSE(probe().huge_pages_on_request());
}

TEST_F(FakeMachine, DerivesTheDefaultBudgetsAndSaysFromWhat) {
  const Machine machine = probe();
  const DefaultBudget host = default_host_budget(machine);
  EXPECT_EQ(host.bytes, 16 * kGiB / 100 * 80 / (2 * kMiB) * (2 * kMiB));
  EXPECT_EQ(host.origin, "80 % of 16.0 GiB (MemAvailable of /proc/meminfo)");
  const DefaultBudget device = largest_simulated_device_budget(machine);
  EXPECT_LE(device.bytes, 4 * kGiB);
  EXPECT_GT(device.bytes, 4 * kGiB - 4 * kMiB);
  EXPECT_EQ(device.bytes % (2 * kMiB), 0u);
}

TEST_F(FakeMachine, ReportsWhatIsInUse) {
  EXPECT_EQ(current_memory_use(root.path()).pss_bytes, 1500 * kKiB);
  EXPECT_FALSE(current_memory_use(root.path()).cgroup_anon_and_shmem_bytes.has_value());
  root.write("sys/fs/cgroup/memory.stat", "anon 1000\nfile 7\nanon_thp 5\nshmem 24\n");
  EXPECT_EQ(current_memory_use(root.path()).cgroup_anon_and_shmem_bytes, 1024u);
  root.write("proc/self/cgroup", "4:memory:/job\n");
  root.write("sys/fs/cgroup/memory/job/memory.stat",
             "rss 1\nshmem 1\ntotal_rss 4096\ntotal_rss_huge 0\ntotal_shmem 4\n");
  EXPECT_EQ(current_memory_use(root.path()).cgroup_anon_and_shmem_bytes, 4100u);
  std::filesystem::remove(root / "proc/self/smaps_rollup");
  EXPECT_EQ(current_memory_use(root.path()).pss_bytes, 0u);
}

TEST_F(FakeMachine, NamesTheFileItCannotUnderstand) {
  const auto names = [&](const std::string& file) {
    try {
      probe();
      return false;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::io && error.parts().subject.in(Door::cpp).ends_with(file);
    }
  };
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/memory.max", "lots\n");
  EXPECT_TRUE(names("sys/fs/cgroup/memory.max"));
  root.write("sys/fs/cgroup/memory.max", "max\n");
  root.write("proc/self/limits",
             "Max locked memory         some                 some                 bytes\n");
  EXPECT_TRUE(names("proc/self/limits"));
  root.write("proc/self/limits",
             "Max locked memory         1                    1                    bytes\n");
  root.write("proc/self/status", "Cpus_allowed_list:\t0-x\n");
  EXPECT_TRUE(names("proc/self/status"));
  root.write("proc/self/status", "Name: x\n");
  EXPECT_TRUE(names("proc/self/status"));
  root.write("proc/meminfo", "MemTotal: 1 kB\n");
  EXPECT_TRUE(names("proc/meminfo"));
}

TEST(CpuList, IsParsedInFullOrRefused) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n", "f"), (std::vector<uint32_t>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5,1-2,2", "f"), (std::vector<uint32_t>{1, 2, 5}));
  EXPECT_TRUE(parse_cpu_list("\n", "f").empty());
  for (const char* bad : {"3-1", "a", "1,", "1-", "-1", "1,,2", "0-99999999999", "1 2"}) {
    EXPECT_THROW(parse_cpu_list(bad, "f"), Error) << bad;
  }
}

TEST(Machine, OfThisTestIsUnderstood) {
  const Machine machine = probe_machine();
  EXPECT_GT(machine.memory_limit.bytes, 64 * kMiB);
  EXPECT_FALSE(machine.cores.empty());
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  EXPECT_EQ(machine.memlock_limit_bytes.value_or(limit.rlim_cur), limit.rlim_cur);
  const MemoryUse use = current_memory_use();
  EXPECT_GT(use.pss_bytes, 100 * kKiB);
}

}  // namespace
}  // namespace terrace::machine_test
