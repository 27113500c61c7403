// What is planned for a GPU, on one that is played.
#include <gtest/gtest.h>

#include <terrace/runtime/planning/update_sides.h>
#include <terrace/runtime/planning/ways_out.h>

#include "played_gpu.h"
#include "runtime/trainer_rig.h"

namespace terrace::trainer_tests {
namespace {

constexpr uint64_t kHostBytes = 64 * kGiB;

Shortage shortage_of(const TrainerOptions& options) {
  Workers workers(1);
  try {
    set_up_training(options.config, options.model, workers, options.compute);
  } catch (const ShortageError& refusal) {
    return find_ways_out(refusal, options.config, options.model, workers, options.compute, {kHostBytes});
  }
  ADD_FAILURE() << "it fits";
  return {};
}

TrainerOptions too_large_for(const PlayedGpu& gpu) {
  RunOptions run;
  run.compute = gpu.compute.get();
  TrainerOptions options = options_of(run);
  options.model.layers = 1;
  options.model.width = 64;
  options.config.batch = {8, 1};
  options.config.terrace.chunk_elements.reset();
  options.config.terrace.device_memory_bytes = kMiB;
  return options;
}

TEST(CudaPlanning, OffersWaysOutThatFitWhenTheyAreTried) {
  PlayedGpu gpu({.driver = {.granularity_bytes = kMiB}});  // of which the host's plans know nothing
  const TrainerOptions options = too_large_for(gpu);
  const Shortage shortage = shortage_of(options);
  ASSERT_EQ(shortage.ways.size(), 2u);
  EXPECT_TRUE(shortage.ways[0].change.starts_with("--device-memory")) << shortage.ways[0].change;
  for (const WayOut& way : shortage.ways) {
    SCOPED_TRACE(way.change);
    TrainerOptions tried = options;
    tried.config = way.config;
    tried.model = way.model;
    MemoryLog log;
    TrainingData data(TrainerRun::tokens(1), {way.model.context, tried.config.terrace.seed, 0});
    Trainer trainer(tried, data, log);
    trainer.step();
    EXPECT_LE(gpu.driver.used_bytes(), *way.config.terrace.device_memory_bytes);
  }
}

// Memory of the host for more of it is of no use.
TEST(CudaPlanning, OffersNoMoreMemoryThanIsFreeOnTheGpu) {
  uint64_t needed = 0;
  {
    PlayedGpu roomy;
    needed = shortage_of(too_large_for(roomy)).tiers[0].needed_bytes;
  }
  ASSERT_GT(needed, kMiB);
  PlayedGpu small({.driver = {.memory_bytes = needed}});  // and a part of it is not for a run
  const Shortage shortage = shortage_of(too_large_for(small));
  ASSERT_FALSE(shortage.ways.empty());
  for (const WayOut& way : shortage.ways)
    EXPECT_LE(*way.config.terrace.device_memory_bytes, facts_of(small.compute.get()).own_memory->budget_bytes)
        << way.change;
}

// Nothing of what was measured with stays.
TEST(CudaPlanning, MeasuresBothSidesOfTheUpdateBeforeARun) {
  PlayedGpu gpu;
  RunOptions run;
  run.compute = gpu.compute.get();
  run.parameters = "cpu";
  run.ratio = "auto";
  TrainerOptions options = options_of(run);
  const std::string found = settle_update_sides(options.config, options.compute, {});
  ASSERT_TRUE(options.config.placement.update_rates);
  EXPECT_GT(options.config.placement.update_rates->processor_elements, 0);
  EXPECT_GT(options.config.placement.update_rates->link_bytes, 0);
  EXPECT_EQ(options.config.placement.update_rates->nvme_bytes, 0);
  EXPECT_GT(gpu.driver.calls("cuMemHostRegister"), 0u);
  EXPECT_EQ(gpu.driver.used_bytes(), 0u);
  EXPECT_NE(found.find("GB/s each way"), std::string::npos) << found;
}

}  // namespace
}  // namespace terrace::trainer_tests
