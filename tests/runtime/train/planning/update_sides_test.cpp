// What "auto" for the ratio of updates comes to without a GPU, and what becomes of rates in a plan.
#include <terrace/runtime/train/planning/update_sides.h>

#include <gtest/gtest.h>

#include <fstream>

#include <terrace/offload/plan/budget_shortage.h>

#include "runtime/train/trainer_rig.h"

namespace terrace {
namespace {

using namespace trainer_tests;

constexpr UpdateRates kEven{1e9, 16e9, 0};  // records of Adam and fp32 gradients: 16 bytes each way

RunOptions in_host_memory() {
  RunOptions run;
  run.parameters = "cpu";
  run.ratio = "auto";
  return run;
}

std::string settled(const RunOptions& run, const fs::path& replayed = {}) {
  TrainerOptions options = options_of(run);
  const std::string found = settle_update_sides(options.config, options.compute, replayed);
  if (found.empty()) return found;
  return update_sides_text(found, options.config, plan_training(options));
}

TEST(UpdateSides, AreTheProcessorsWhereThereIsNoOther) {
  EXPECT_EQ(
      settled(in_host_memory()),
      "offload_optimizer.ratio is auto: the simulated device computes with the processor's own threads: "
      "the processor updates all");
  RunOptions run = in_host_memory();
  run.update = "next_forward";
  run.update_rates = kEven;  // would be refused
  EXPECT_EQ(settled(run),
            "offload_optimizer.ratio is auto: updates run in the next forward, in which the device has no "
            "part: the processor updates all");
  run = in_host_memory();
  run.ratio = "0.5";
  EXPECT_EQ(settled(run), "");
  run = in_host_memory();
  run.parameters = "";  // nor states
  EXPECT_EQ(settled(run), "");
}

TEST(UpdateSides, AreThoseOfTheRunThatIsReplayed) {
  const ScratchFolder folder;
  const fs::path path = folder.path() / "decisions.jsonl";
  const std::string head = "{\"terrace_decisions\": 1, \"chunks\": 9, \"slots\": 4";
  std::ofstream(path) << head << ", \"update_rates\": [1e9, 16e9, 0]}\n";
  const std::string text = settled(in_host_memory(), path);
  EXPECT_NE(
      text.find("decisions.jsonl has it, the processor updates 1 G elements/s, and the link carries 16 GB/s "
                "each way: the processor updates 5"),
      std::string::npos)
      << text;
  std::ofstream(path) << head << ", \"processor_share\": 0}\n";
  EXPECT_NE(settled(in_host_memory(), path).find("the processor updates 0.0 % of the bytes"),
            std::string::npos);
  std::ofstream(path) << head << "}\n";
  EXPECT_NE(settled(in_host_memory(), path).find("has it: the processor updates all"), std::string::npos);
}

// Where a ratio that was asked for is refused.
TEST(UpdateSides, AreTheProcessorsWhereTheDeviceHasNoMemoryToTakePart) {
  RunOptions run = in_host_memory();
  run.device_memory = std::to_string(plan_training(options_of(run)).plan.memory.device_minimum_bytes);
  RunOptions half = run;
  half.ratio = "0.5";
  EXPECT_THROW(plan_training(options_of(half)), ShortageError);
  run.update_rates = kEven;
  const TrainingSetup setup = plan_training(options_of(run));
  EXPECT_EQ(setup.plan.memory.device_update_chunks, 0u);
  EXPECT_FALSE(setup.offload.update_rates);
  EXPECT_EQ(setup.plan.processor_share, 1);
  EXPECT_NE(update_sides_text("rates", options_of(run).config, setup).find("no memory to take part"),
            std::string::npos);
  // With room for the lanes it has its part.
  run.device_memory = "16MiB";
  const TrainingSetup roomy = plan_training(options_of(run));
  EXPECT_EQ(roomy.offload.update_rates, kEven);
  EXPECT_NEAR(roomy.plan.processor_share, 0.5, 0.1);
  EXPECT_GT(roomy.plan.memory.device_update_chunks, 0u);
  // What is too small without them, too, is told what the processor alone takes.
  run.device_memory = "4KiB";
  half.ratio = "1";
  half.device_memory = run.device_memory;
  const auto needed = [](const RunOptions& asked) -> uint64_t {
    try {
      plan_training(options_of(asked));
    } catch (const ShortageError& shortage) {
      return shortage.tiers().front().needed_bytes;
    }
    return 0;
  };
  EXPECT_EQ(needed(run), needed(half));
}

TEST(UpdateSides, AreTheProcessorsWhereTheDrivesAreSlower) {
  const ScratchFolder folder;
  RunOptions run = in_host_memory();
  run.nvme = folder.path();
  run.update_rates = UpdateRates{1e9, 1e12, 24e9};
  const TrainerOptions options = options_of(run);
  const TrainingSetup setup = plan_training(options);
  EXPECT_EQ(setup.plan.memory.device_update_chunks, 0u);
  EXPECT_NE(update_sides_text("rates", options.config, setup).find("the drives are slower"),
            std::string::npos);
}

}  // namespace
}  // namespace terrace
