// The order of a step's micro-batches: it shows in no number, and a run may go on in the other one.
#include <gtest/gtest.h>

#include <terrace/reference/planning/update_choice.h>

#include "reference/trainer_rig.h"

namespace terrace::trainer_order_test {
namespace {

using namespace trainer_tests;

RunOptions in_order(const std::string& order, const fs::path& nvme, const std::string& update) {
  RunOptions options;
  options.order = order;
  options.accumulation = "4";
  options.nvme = nvme;
  options.parameters = "cpu";
  options.precision = "true";
  options.update = update;
  return options;
}

TEST(TrainerOrder, ShowsInNoLossAndNoWeight) {
  for (const char* update : {"after_backward", "next_forward", "during_backward"}) {
    const ScratchFolder folder;
    std::vector<double> losses;
    std::vector<std::byte> state;
    for (const char* order : {"batch", "layer"}) {
      RunOptions options = in_order(order, folder.path(), update);
      options.discard = true;
      TrainerRun run(options);
      const std::vector<double> found = run.train(3);
      if (losses.empty()) {
        losses = found;
        state = run.state();
      }
      EXPECT_EQ(found, losses) << update;
      EXPECT_TRUE(run.state() == state) << update;
    }
  }
}

TEST(TrainerOrder, MayChangeWhenARunGoesOn) {
  const ScratchFolder folder, saved;
  RunOptions options = in_order("batch", folder.path(), "after_backward");
  options.durable = "false";
  std::vector<double> losses;
  std::vector<std::byte> state;
  {
    TrainerRun whole(options);
    losses = whole.train(2);
    whole.trainer->save(whole.saves_in(saved.path()));
    const std::vector<double> rest = whole.train(2);
    losses.insert(losses.end(), rest.begin(), rest.end());
    state = whole.state();
  }
  options.order = "layer";
  TrainerRun resumed(options);
  resumed.trainer->resume(saved.path());
  EXPECT_EQ(resumed.train(2), std::vector<double>(losses.begin() + 2, losses.end()));
  EXPECT_TRUE(resumed.state() == state);
  for (const MemoryLog::Line& line : resumed.log.lines())
    EXPECT_EQ(line.text.find("differs from the checkpoint's run"), std::string::npos) << line.text;
}

TEST(TrainerOrder, LetsAnUpdateRunBesideAllMicroBatches) {
  const ScratchFolder folder;
  for (const char* order : {"batch", "layer"}) {
    const TrainerOptions options = options_of(in_order(order, folder.path(), "auto"));
    EXPECT_EQ(update_rules(options.config, plan_training(options)).accumulation_steps,
              options.config.batch.layer_major ? 1u : 4u);
  }
}

TEST(TrainerOrder, TheRecordedScheduleIsThatOfTheOrder) {
  const ScratchFolder folder;
  TrainerRun run(in_order("layer", folder.path(), "after_backward"));
  run.train(1);
  const SimSchedule schedule = run.trainer->recorded_schedule();
  const auto starts_with = [&](size_t use, std::string_view text) {
    return std::string_view(schedule.uses[use].operation).starts_with(text);
  };
  EXPECT_TRUE(starts_with(0, "mb0/embedding.0/forward"));
  EXPECT_TRUE(starts_with(1, "mb1/embedding.0/forward"));
  EXPECT_TRUE(starts_with(8, "mb0/h.0.attn.qkv/forward"));
  EXPECT_GT(schedule.uses[8].compute_ns, 0u);
}

}  // namespace
}  // namespace terrace::trainer_order_test
