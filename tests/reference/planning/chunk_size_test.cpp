// The size of chunks that a run gets where nobody names one.
#include <terrace/reference/planning/chunk_size.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/base/error.h>
#include <terrace/base/log.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/budget_shortage.h>

#include "reference/trainer_rig.h"

namespace terrace::chunk_size_test {
namespace {

using namespace trainer_tests;

struct Budgets {
  const char* device;
  const char* host;
  const char* accumulation;
};

TrainerOptions tight(const Budgets& budgets) {
  RunOptions run;
  run.nvme = "/nowhere/at/all";
  run.parameters = "nvme";
  run.device_memory = budgets.device;
  run.host_memory = budgets.host;
  run.accumulation = budgets.accumulation;
  run.layers = 4;
  TrainerOptions options = options_of(run);
  options.config.terrace.chunk_elements.reset();
  options.model.width = 256;
  options.model.heads = 4;
  options.model.context = 128;
  options.model.vocabulary = 256;
  return options;
}

double seconds_with(const TrainerOptions& options, uint64_t elements, Workers& workers) {
  TrainConfig config = options.config;
  config.terrace.chunk_elements = elements;
  const TrainingSetup setup = set_up_training(config, options.model, workers);
  return predict_by_reference(config, setup, workers, reference_machine(workers, nullptr)).step_seconds;
}

// Chunks of 8 Ki elements move fewest bytes there, and of the step they take a third for themselves.
TEST(ChunkSize, IsOneWithWhichNoOtherIsMuchFaster) {
  Workers workers(2);
  for (const Budgets& budgets : {Budgets{"8MiB", "20MiB", "2"}, Budgets{"8MiB", "12MiB", "2"},
                                 Budgets{"16MiB", "40MiB", "3"}, Budgets{"12MiB", "24MiB", "1"}}) {
    SCOPED_TRACE(fmt::format("device {}, host {}", budgets.device, budgets.host));
    const TrainerOptions options = tight(budgets);
    const TrainingSetup setup = set_up_with_fastest_chunks(options.config, options.model, workers);
    const uint64_t chosen = setup.plan.chunk_elements;
    const double least = seconds_with(options, chosen, workers);
    size_t others = 0;
    for (const uint64_t elements : chunk_sizes(setup.tensors, setup.offload, 0)) {
      try {
        const double seconds = seconds_with(options, elements, workers);
        EXPECT_GE(seconds, 0.97 * least) << elements << " instead of " << chosen;
        others += seconds > 1.1 * least ? 1 : 0;
      } catch (const ShortageError&) {
        EXPECT_NE(elements, chosen);
      }
    }
    EXPECT_GT(others, 0u) << "any size would have done";
  }
}

TEST(ChunkSize, IsTheOneThatIsConfigured) {
  Workers workers(1);
  TrainerOptions options = tight({"8MiB", "20MiB", "2"});
  options.config.terrace.chunk_elements = 8192;
  const TrainingSetup setup = set_up_with_fastest_chunks(options.config, options.model, workers);
  EXPECT_EQ(setup.plan.chunk_elements, 8192u);
  EXPECT_EQ(setup.plan.chunk_origin, "as configured");
}

TEST(ChunkSize, StaysWithinTheBoundOfSubGroups) {
  Workers workers(1);
  TrainerOptions options = tight({"16MiB", "40MiB", "1"});
  options.config.max_chunk_elements = 16384;
  const TrainingSetup setup = set_up_with_fastest_chunks(options.config, options.model, workers);
  EXPECT_LE(setup.plan.chunk_elements, 16384u);
}

// Where nearly all of a step is computing, no size can be much faster than the first, and no other one is
// planned.
TEST(ChunkSize, IsNotSearchedForWhereAStepOnlyComputes) {
  Workers workers(1);
  for (const bool computes : {true, false}) {
    TrainerOptions options = tight({"8MiB", "20MiB", "2"});
    if (computes) {
      options.config.placement.parameters = options.config.placement.states = Placement::cpu;
      options.config.terrace.host_memory_bytes = kGiB;
      options.config.batch.micro_batch_size = 64;
      options.config.terrace.device_memory_bytes = kGiB;
    }
    MemoryLog log;
    PlanningProgress progress(log);
    set_up_with_fastest_chunks(options.config, options.model, workers, nullptr, &progress);
    EXPECT_EQ(progress.size_count() == 1, computes) << progress.size_count();
  }
}

// A budget that is too small is refused as without the search.
TEST(ChunkSize, RefusesWhatNoSizeFits) {
  Workers workers(1);
  const TrainerOptions options = tight({"64KiB", "20MiB", "1"});
  EXPECT_THROW(set_up_with_fastest_chunks(options.config, options.model, workers), ShortageError);
}

}  // namespace
}  // namespace terrace::chunk_size_test
