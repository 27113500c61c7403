// Training in fp16 through the trainer: steps that overflow change nothing and are counted, and a run that is
// saved in their midst goes on as if it had not been.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/reference/trainer.h>

#include "support/offloaders.h"
#include "support/scratch_folder.h"

namespace terrace::fp16_training_test {
namespace {

constexpr uint32_t kContext = 16;

class CountingTokens final : public TokenSource {
 public:
  uint64_t token_count() const override { return 600; }
  void read(uint64_t first, std::span<int32_t> tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((first + i) % 13);
  }
  uint32_t vocabulary() const override { return 13; }
  uint64_t fingerprint() const override { return 1; }
  std::string description() const override { return "numbers"; }
  std::filesystem::path path() const override { return "numbers"; }
};

struct Rig {
  explicit Rig(const Fp16Config& fp16, DataType precision = DataType::fp16)
      : data(tokens(), {kContext, 42, 0}), trainer(options(fp16, precision), data, log) {}

  static OpenTokens tokens() {
    OpenTokens open;
    open.train = std::make_unique<CountingTokens>();
    return open;
  }
  static TrainerOptions options(const Fp16Config& fp16, DataType precision) {
    const ConfigOverride overrides[] = {{"train_micro_batch_size_per_gpu", "2", "a test"},
                                        {"gradient_accumulation_steps", "2", "a test"},
                                        {"terrace.threads", "1", "a test"},
                                        {"terrace.device_memory", "16MiB", "a test"},
                                        {"terrace.host_memory", "64MiB", "a test"}};
    TrainerOptions options;
    options.config = default_train_config(overrides);
    options.config.precision = precision;
    options.config.fp16 = fp16;
    options.config.placement.parameters = options.config.placement.states = Placement::cpu;
    options.config.schedule = {};
    options.config.schedule.kind = LrScheduleKind::warmup;
    options.config.schedule.warmup_step_count = 5;
    options.config.schedule.maximum_lr = {3e-3};
    options.model = model_preset("gpt2");
    options.model.layers = 1;
    options.model.heads = 2;
    options.model.width = 32;
    options.model.context = kContext;
    options.model.vocabulary = 13;
    return options;
  }

  std::vector<std::byte> state() { return testing::records_of(trainer.offloader()); }

  MemoryLog log;
  TrainingData data;
  Trainer trainer;
};

TEST(Fp16Training, SkipsOverflowsAndThenLearns) {
  Rig rig({.initial_scale_power = 26, .loss_scale_window = 1000, .hysteresis = 2});
  Rig schedule({.loss_scale = 16});  // never overflows: its rates are those of the schedule
  uint64_t skipped = 0;
  double first_loss = 0, last_loss = 0;
  std::vector<double> rates;
  for (uint64_t step = 1; step <= 60; ++step) {
    const std::vector<std::byte> before = step < 20 ? rig.state() : std::vector<std::byte>();
    const StepReport report = rig.trainer.step();
    EXPECT_EQ(report.step, step);
    EXPECT_EQ(rig.trainer.completed_steps(), step);
    if (step == 1) first_loss = report.loss;
    last_loss = report.loss;
    if (report.skipped) {
      ++skipped;
      EXPECT_EQ(rig.state(), before);
      EXPECT_EQ(report.next_loss_scale, skipped == 1 ? report.loss_scale : report.loss_scale / 2);
    } else {
      EXPECT_TRUE(std::isfinite(report.gradient_norm));
      EXPECT_LT(report.gradient_norm, 100);  // of the true gradients
      rates.push_back(report.learning_rate);
    }
    EXPECT_EQ(rig.trainer.applied_updates(), step - skipped);
  }
  EXPECT_GE(skipped, 3u);
  EXPECT_LT(skipped, 30u);
  EXPECT_LT(last_loss, first_loss - 0.5);
  for (const double rate : rates) EXPECT_EQ(rate, schedule.trainer.step().learning_rate);
}

TEST(Fp16Training, GoesOnFromACheckpointInTheMidstOfOverflows) {
  const Fp16Config fp16{.initial_scale_power = 24, .loss_scale_window = 4, .hysteresis = 3};
  Rig whole(fp16);
  const ScratchFolder folder;
  for (uint64_t step = 1; step <= 9; ++step) {
    whole.trainer.step();
    if (step == 2) whole.trainer.save({folder.path(), whole.log});
  }
  EXPECT_GT(whole.trainer.applied_updates(), 0u);
  EXPECT_LT(whole.trainer.applied_updates(), 9u);
  Rig second(fp16);
  second.trainer.resume(folder.path());
  for (uint64_t step = 3; step <= 9; ++step) second.trainer.step();
  EXPECT_EQ(second.trainer.applied_updates(), whole.trainer.applied_updates());
  EXPECT_EQ(second.state(), whole.state());
  EXPECT_EQ(second.trainer.step().loss_scale, whole.trainer.step().loss_scale);
}

TEST(Fp16Training, EndsWithAnErrorAtTheSmallestScaleAndLeavesTheWeights) {
  Rig rig({.initial_scale_power = 40, .hysteresis = 1, .min_loss_scale = 0x1p39});
  const std::vector<std::byte> before = rig.state();
  EXPECT_TRUE(rig.trainer.step().skipped);
  try {
    rig.trainer.step();
    FAIL() << "a scale below the minimum";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled);
  }
  EXPECT_EQ(rig.state(), before);
  EXPECT_EQ(rig.trainer.completed_steps(), 1u);
}

// Weights beyond fp16 are infinite there: no loss comes of them.
void make_huge(Rig& rig) {
  rig.trainer.offloader().state().initialise([](TensorId, uint64_t, std::span<float> values) {
    std::fill(values.begin(), values.end(), std::numeric_limits<float>::max());
  });
}

TEST(Fp16Training, TakesALossThatIsNoNumberForAnOverflowWhereOtherPrecisionsStop) {
  Rig rig({.initial_scale_power = 10, .hysteresis = 1});
  make_huge(rig);
  const StepReport report = rig.trainer.step();
  EXPECT_FALSE(std::isfinite(report.loss));
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.next_loss_scale, 512);
  Rig wide({}, DataType::bf16);
  make_huge(wide);
  EXPECT_THROW(wide.trainer.step(), Error);
}

TEST(Fp16Training, OtherPrecisionsScaleNothing) {
  Rig rig({.loss_scale = 1024}, DataType::bf16);
  const StepReport report = rig.trainer.step();
  EXPECT_EQ(report.loss_scale, 1);
  EXPECT_EQ(report.next_loss_scale, 1);
  EXPECT_FALSE(report.skipped);
}

}  // namespace
}  // namespace terrace::fp16_training_test
