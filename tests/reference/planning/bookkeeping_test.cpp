// What is known of every chunk takes heap memory, which the plan counts.
#include <gtest/gtest.h>
#include <malloc.h>

#include <terrace/base/error.h>
#include <terrace/reference/planning/dry_training.h>

#include "reference/trainer_rig.h"
#include "support/sanitized.h"

namespace terrace::bookkeeping_test {
namespace {

using namespace trainer_tests;

struct HeapUse {
  uint32_t chunks = 0;
  uint64_t bytes = 0;
};

uint64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

HeapUse heap_use(RunOptions run, const char* chunk_elements) {
  const ScratchFolder folder;
  run.nvme = folder.path();
  run.device_memory = "8MiB", run.host_memory = "24MiB";
  run.chunk_elements = chunk_elements;
  TrainerOptions options = options_of(run);
  options.model.layers = 40, options.model.width = 128;
  Workers workers(1);
  const TrainingSetup setup = plan_training(options);
  const uint64_t before = heap_bytes();
  DryTraining training(options.config, setup, *options.config.terrace.update, workers);
  training.stop_recording();
  training.step();
  training.step();
  if (training.offloader().commits().are_kept()) training.commit();
  return {setup.plan.memory.parameter_chunks, heap_bytes() - before};
}

TEST(Bookkeeping, OfAChunkTakesNoMoreThanThePlanHasForIt) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer has a heap of its own";
  for (const char* update : {"after_backward", "next_forward", "during_backward"}) {
    for (const char* compact : {"false", "true"}) {
      SCOPED_TRACE(std::string(update) + " compact " + compact);
      RunOptions run;
      run.parameters = "nvme";
      run.update = update;
      run.compact = run.precision = compact;
      const HeapUse few = heap_use(run, "16384"), many = heap_use(run, "4096");
      ASSERT_GT(many.chunks, few.chunks + 500);
      const uint64_t each = (many.bytes - few.bytes) / (many.chunks - few.chunks);
      RecordProperty("bytes of a chunk", static_cast<int>(each));
      EXPECT_LE(each, kBookkeepingBytesPerChunk);
      EXPECT_GT(each, kBookkeepingBytesPerChunk / 4) << "the plan has far too much for it";
    }
  }
}

TEST(Bookkeeping, IsPartOfWhatARefusedBudgetLacks) {
  const ScratchFolder folder;
  RunOptions run;
  run.nvme = folder.path();
  run.parameters = "nvme";
  run.device_memory = "8MiB", run.host_memory = "1MiB";
  TrainerOptions options = options_of(run);
  options.model.layers = 40, options.model.width = 128;
  try {
    plan_training(options);
    FAIL() << "a budget without room for it was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("bookkeeping of chunks 1.3"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace terrace::bookkeeping_test
