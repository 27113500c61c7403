// What the eviction policies cost on a recorded schedule: the bytes that really cross the link to the device.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include <terrace/memory/device/simulated_device.h>

#include "offload/toy_training.h"
#include "support/offloaders.h"

namespace terrace::eviction_traffic_test {
namespace {

// Parameters copied to the device per step, on demand only, once the schedule and the tier are warm.
uint64_t device_bytes_per_step(PolicyKind policy, uint64_t spare_chunks, uint32_t accumulation) {
  const std::vector<TensorSpec> specs = toy::tensors(DataType::bf16, true);
  const FlatSpace space(specs, kTileElements);
  const std::vector<TensorUse> uses = toy::trace(specs, accumulation);
  OffloadOptions options;
  options.parameters = Placement::cpu;
  options.states = Placement::cpu;
  options.micro_batches = accumulation;
  options.policy = policy;
  options.prefetch_uses = 0;
  const MemoryPlan roomy = testing::plan_roomy(options, space, uses);
  options.device_budget_bytes = roomy.device_minimum_bytes + spare_chunks * roomy.slot_bytes;
  SimulatedDevice device({options.device_budget_bytes});
  Workers workers(1);
  MemoryLog log;
  Offloader offloader(space, options, uses, device, workers, log);
  toy::initialise(offloader);
  const std::vector<OptimizerSettings> groups = toy::groups();
  uint64_t before = 0;
  for (uint64_t step = 1; step <= 2; ++step) {
    before = offloader.report().counters().h2d_bytes;
    toy::train_step(offloader, specs, accumulation, {groups, step, 0});
  }
  return offloader.report().counters().h2d_bytes - before;
}

TEST(EvictionTraffic, OptMovesNoMoreThanAnyOtherPolicy) {
  std::map<PolicyKind, int> worse;
  std::printf("KiB to the device per step\nspare  micro-batches     ");
  for (const PolicyKind policy : policy_kinds()) std::printf(" %11s", std::string(name_of(policy)).c_str());
  std::printf("\n");
  for (const uint32_t accumulation : {1u, 3u}) {
    for (const uint64_t spare : {0u, 1u, 2u, 4u, 7u, 10u}) {
      std::printf("%5d  %13u", static_cast<int>(spare), accumulation);
      const uint64_t least = device_bytes_per_step(PolicyKind::opt, spare, accumulation);
      for (const PolicyKind policy : policy_kinds()) {
        const uint64_t bytes = device_bytes_per_step(policy, spare, accumulation);
        std::printf(" %11d", static_cast<int>(bytes / kKiB));
        EXPECT_GE(bytes, least) << name_of(policy) << " with " << spare << " chunks to spare";
        if (bytes > least) ++worse[policy];
      }
      std::printf("\n");
    }
  }
  EXPECT_GT(worse[PolicyKind::patrickstar], 0);
  EXPECT_EQ(worse[PolicyKind::opt], 0);
}

}  // namespace
}  // namespace terrace::eviction_traffic_test
