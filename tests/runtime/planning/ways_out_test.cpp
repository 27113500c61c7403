// What is offered to a run that does not fit does fit.
#include <terrace/runtime/planning/ways_out.h>

#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/runtime/training_setup.h>

#include "runtime/trainer_rig.h"

namespace terrace {
namespace {

using namespace trainer_tests;

constexpr uint64_t kMachineBytes = 64 * kGiB;

Shortage shortage_of(const TrainerOptions& options) {
  Workers workers(1);
  EXPECT_THROW(set_up_training(options.config, options.model, workers), Error);
  return find_ways_out(options.config, options.model, workers, kMachineBytes);
}

void expect_two_ways(const Shortage& shortage) {
  Workers workers(1);
  ASSERT_EQ(shortage.ways.size(), 2u);
  for (const WayOut& way : shortage.ways)
    EXPECT_NO_THROW(set_up_training(way.config, way.model, workers)) << way.change;
}

TEST(WaysOut, OfTooLittleDeviceMemoryAreTwoThatFit) {
  TrainerOptions options = options_of({});
  options.config.batch = {8, 1};
  options.config.terrace.chunk_elements.reset();
  options.config.terrace.device_memory_bytes = kMiB;
  const Shortage shortage = shortage_of(options);
  EXPECT_EQ(shortage.tier, "device");
  expect_two_ways(shortage);
  // The least that does, and no MiB less.
  TrainConfig config = options.config;
  config.terrace.device_memory_bytes = kMiB + shortage.missing_bytes;
  Workers workers(1);
  EXPECT_NO_THROW(set_up_training(config, options.model, workers));
  config.terrace.device_memory_bytes = shortage.missing_bytes;
  EXPECT_THROW(set_up_training(config, options.model, workers), Error);
}

// What leaves the device has no room in host memory either.
TEST(WaysOut, OfTooLittleDeviceMemoryBesideLittleHostMemoryLeadToNvme) {
  TrainerOptions options = options_of({});
  options.model.vocabulary = 4096;
  options.model.width = 128;
  options.config.terrace.chunk_elements.reset();
  options.config.terrace.device_memory_bytes = 6 * kMiB;
  options.config.terrace.host_memory_bytes = 4 * kMiB;
  Workers workers(1);
  EXPECT_THROW(set_up_training(options.config, options.model, workers), Error);
  // No more memory than there is: of the ways none is a budget.
  const Shortage shortage = find_ways_out(options.config, options.model, workers, 10 * kMiB);
  EXPECT_EQ(shortage.tier, "device");
  ASSERT_FALSE(shortage.ways.empty());
  const std::string first = shortage.ways[0].change;
  for (const WayOut& way : shortage.ways) {
    const bool is_first = &way == &shortage.ways[0];
    EXPECT_TRUE(is_first || way.change.find(first) == std::string::npos) << "more than is needed";
    EXPECT_NE(way.change.find("nvme"), std::string::npos) << way.change;
    EXPECT_NO_THROW(set_up_training(way.config, way.model, workers)) << way.change;
  }
}

TEST(WaysOut, OfTooLittleHostMemoryAreTwoThatFit) {
  RunOptions run;
  run.parameters = "cpu";
  run.precision = "true";
  TrainerOptions options = options_of(run);
  options.model.vocabulary = 4096;
  options.model.width = 128;
  options.config.terrace.device_memory_bytes = 64 * kMiB;
  options.config.terrace.host_memory_bytes = kMiB;
  const Shortage shortage = shortage_of(options);
  EXPECT_EQ(shortage.tier, "host");
  EXPECT_GT(shortage.missing_bytes, kMiB);
  expect_two_ways(shortage);
}

// Budgets that the machine has not got are no way.
TEST(WaysOut, NeverAskForMoreMemoryThanThereIs) {
  RunOptions run;
  run.parameters = "cpu";
  TrainerOptions options = options_of(run);
  options.model.width = 128;
  options.config.terrace.host_memory_bytes = kMiB;
  Workers workers(1);
  const Shortage shortage = find_ways_out(options.config, options.model, workers, kMiB);
  EXPECT_GT(shortage.missing_bytes, 0u);
  for (const WayOut& way : shortage.ways)
    EXPECT_EQ(way.change.find("--host-memory"), std::string::npos) << way.change;
}

}  // namespace
}  // namespace terrace
