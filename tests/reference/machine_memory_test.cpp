// Budgets that a machine has not got are known before anything is allocated.
#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/reference/setup/run_plan.h>

#include "support/expect_error.h"

namespace terrace::machine_memory_test {
namespace {

constexpr uint64_t kProcess = 20 * kMiB;

TrainerPlan plan_of(uint64_t host_bytes, uint64_t device_bytes) {
  TrainerPlan plan;
  plan.memory.host_bytes = host_bytes;
  plan.memory.device_bytes = device_bytes;
  return plan;
}

size_t warnings_of(const TrainerPlan& plan, bool has_own_memory, const SourcedBytes& limit) {
  MemoryLog log;
  Machine machine;
  machine.memory_limit = limit;
  require_machine_memory(plan, has_own_memory, machine, kProcess, log);
  return log.lines().size();
}

TEST(MachineMemory, OfAContainerIsNotPlannedBeyondItsLimit) {
  const SourcedBytes limit{200 * kMiB, "memory.limit_in_bytes of cgroup /job", true};
  EXPECT_EQ(warnings_of(plan_of(150 * kMiB, 16 * kMiB), false, limit), 0u);
  EXPECT_EQ(warnings_of(plan_of(160 * kMiB, 16 * kMiB), false, limit), 1u);  // within the reserve
  EXPECT_EQ(warnings_of(plan_of(160 * kMiB, 16 * kMiB), true, limit), 0u);   // a GPU has its own
  testing::expect_error(ErrorKind::capacity, {"180.0 MiB", "16.0 MiB", "200.0 MiB", "cgroup /job"},
                        [&] { warnings_of(plan_of(180 * kMiB, 16 * kMiB), false, limit); });
}

TEST(MachineMemory, ThatOtherProgramsHaveIsWarnedOf) {
  const SourcedBytes limit{200 * kMiB, "MemAvailable of /proc/meminfo"};
  EXPECT_EQ(warnings_of(plan_of(160 * kMiB, 16 * kMiB), false, limit), 0u);
  EXPECT_EQ(warnings_of(plan_of(180 * kMiB, 16 * kMiB), false, limit), 1u);
}

}  // namespace
}  // namespace terrace::machine_memory_test
