// The least that the steps of a run could have moved, against what they moved.
#include <terrace/runtime/observe/log/least_traffic.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/offload/watch/counter_table.h>

#include "reference/trainer_rig.h"

namespace terrace::least_traffic_test {
namespace {

using namespace trainer_tests;

RunOptions on_nvme(const fs::path& folder, const char* update) {
  RunOptions run;
  run.nvme = folder;
  run.parameters = "nvme";
  run.update = update;
  return run;
}

// The least device memory and `slots` - 1 slots beside; the plan with all the memory that the run had before.
MemoryPlan give_slots(RunOptions& run, uint64_t slots) {
  const MemoryPlan roomy = plan_training(options_of(run)).plan.memory;
  run.device_memory = std::to_string(roomy.device_minimum_bytes + (slots - 1) * roomy.slot_bytes);
  return roomy;
}

// Where every gradient waits in host memory and the device has room for a micro-batch, the first step alone
// reads parameters in next_forward: the others find what the update has made.
TEST(LeastTraffic, IsNeverMoreThanARunMovedAndNothingOnlyWhereNothingHadToMove) {
  uint32_t first_steps_alone = 0;
  for (const char* update : {"next_forward", "after_backward", "during_backward"}) {
    for (const char* accumulation : {"1", "2"}) {
      for (const uint64_t slots : {1, 2, 4, 64}) {
        SCOPED_TRACE(fmt::format("{}, accumulation {}, {} times the least of the device", update,
                                 accumulation, slots));
        const ScratchFolder folder;
        RunOptions run = on_nvme(folder.path(), update);
        run.accumulation = accumulation;
        run.host_memory = std::to_string(give_slots(run, slots).host_holding_bytes);
        TrainerRun trained(run);
        LeastTraffic least;
        OffloadCounters moved;
        constexpr uint64_t kSteps = 4;
        for (uint64_t s = 0; s < kSteps; ++s) {
          const StepReport report = trained.trainer->step();
          least.add(report.update_mode);
          moved = moved + report.moved;
        }
        moved = moved + trained.trainer->finish_update().moved;
        const TrafficBound bound = least.per_step(trained.trainer->offloader());
        for (const CounterEntry& link : kLinks) {
          if (link.bound == nullptr) continue;
          EXPECT_GE(moved.*link.value, kSteps * (bound.*link.bound)) << link.name;
          EXPECT_EQ(moved.*link.value > 0, bound.*link.bound > 0) << link.name;
        }
        const TrafficBound following = trained.trainer->offloader().report().traffic_bound();
        if (moved.param_read_bytes > 0 && following.param_read_bytes == 0) ++first_steps_alone;
      }
    }
  }
  EXPECT_GT(first_steps_alone, 0u);
}

// An evaluation leaves parameters on the device that the step behind it need not fetch, and an update that is
// still to come has moved nothing yet.
TEST(LeastTraffic, CountsWhatAnEvaluationAndAPendingUpdateLeaveOut) {
  for (const char* update : {"next_forward", "after_backward"}) {
    for (const uint64_t slots : {1, 3, 8}) {
      SCOPED_TRACE(fmt::format("{}, {} times the least of the device", update, slots));
      const ScratchFolder folder;
      RunOptions run = on_nvme(folder.path(), update);
      run.validation_fraction = 0.2;
      run.host_memory = std::to_string(give_slots(run, slots).host_minimum_bytes);
      TrainerRun trained(run);
      LeastTraffic least;
      OffloadCounters moved;
      for (uint64_t s = 1; s <= 6; ++s) {
        const StepReport report = trained.trainer->step();
        least.add(report.update_mode);
        moved = moved + report.moved;
        const TrafficBound bound = least.per_step(trained.trainer->offloader());
        for (const CounterEntry& link : kLinks) {
          if (link.bound == nullptr) continue;
          EXPECT_GE(moved.*link.value, s * (bound.*link.bound)) << link.name << ", step " << s;
        }
        if (s % 2 != 0) continue;
        moved = moved + trained.trainer->finish_update().moved;
        trained.trainer->evaluate(2);
        least.add_evaluation();
      }
    }
  }
}

}  // namespace
}  // namespace terrace::least_traffic_test
