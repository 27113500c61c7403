// The files under examples/ are what people copy: each is read, and comes to what its first line says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include <terrace/runtime/config/train_config.h>

namespace terrace::example_configs_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::filesystem::path folder() {
  return std::filesystem::path(__FILE__).parent_path() / "../../../examples/configs";
}

TrainConfig load(const char* name) {
  return load_train_config(folder() / name);
}

TEST(ExampleConfigs, AreAllReadByThisTest) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    names.insert(entry.path().filename().string());
    EXPECT_NO_THROW(load_train_config(entry.path())) << entry.path();
  }
  EXPECT_EQ(names, (std::set<std::string>{"huggingface_auto.json", "parameter_groups.json", "zero2_cpu.json",
                                          "zero2_cpu_fp16.json", "zero3_nvme.json"}));
}

TEST(ExampleConfigs, TrainFp16WithTheOptimizerInHostMemory) {
  const TrainConfig config = load("zero2_cpu_fp16.json");
  EXPECT_EQ(config.precision, DataType::fp16);
  EXPECT_EQ(config.fp16.loss_scale, 0);
  EXPECT_EQ(config.grad_accum_type, DataType::fp32);
  EXPECT_EQ(config.zero_stage, 2u);
  EXPECT_EQ(config.placement.parameters, Placement::none);
  EXPECT_EQ(config.placement.states, Placement::cpu);
  EXPECT_EQ(config.activations.offload, ActivationOffload::cpu);
  EXPECT_TRUE(config.monitor.tensorboard.enabled);
  EXPECT_TRUE(config.wall_clock_breakdown);
  EXPECT_EQ(config.schedule.kind, LrScheduleKind::warmup_cosine);
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST(ExampleConfigs, TrainBf16WithEverythingOnNvme) {
  const TrainConfig config = load("zero3_nvme.json");
  EXPECT_EQ(config.precision, DataType::bf16);
  EXPECT_EQ(config.zero_stage, 3u);
  EXPECT_EQ(config.placement.parameters, Placement::nvme);
  EXPECT_EQ(config.placement.states, Placement::nvme);
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST(ExampleConfigs, FillInWhatHuggingFaceFillsIn) {
  const TrainConfig config = load("huggingface_auto.json");
  EXPECT_EQ(config.precision, DataType::bf16);
  EXPECT_EQ(config.batch.train_batch_size(), 1u);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.optimizer.learning_rate, 5e-5);
  EXPECT_EQ(config.optimizer.beta1, 0.9);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.epsilon, 1e-8);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.schedule.kind, LrScheduleKind::warmup_decay);
  EXPECT_THAT(config.schedule.maximum_lr, IsEmpty());
  EXPECT_EQ(config.schedule.warmup_step_count, 1u);
  EXPECT_FALSE(config.schedule.total_step_count.has_value());
  EXPECT_TRUE(config.gather_16bit_weights_on_save);
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_THAT(config.warnings[0], HasSubstr("known keys have no effect here"));
}

TEST(ExampleConfigs, GiveGroupsOfWeightsTheirOwnSettings) {
  const TrainConfig config = load("parameter_groups.json");
  ASSERT_EQ(config.parameter_groups.size(), 1u);
  EXPECT_EQ(config.parameter_groups[0].weight_decay, 0.0);
  EXPECT_THAT(config.schedule.maximum_lr, ElementsAre(1e-4, 1e-3, 1e-3));
  EXPECT_TRUE(config.monitor.csv.enabled);
  EXPECT_THAT(config.warnings, IsEmpty());
}

}  // namespace
}  // namespace terrace::example_configs_test
