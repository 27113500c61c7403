// What files that are written for other programs carry, and what people write in the place of a key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <terrace/memory/space/flat_space.h>
#include <terrace/runtime/config/schema/suggestions.h>
#include <terrace/runtime/config/train_config.h>

#include "runtime/config/config_test_support.h"

namespace terrace::preset_config_test {
namespace {

using config_test::origin_of;
using config_test::parse;
using config_test::problem;
using config_test::value_of;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string warnings_of(std::string_view text) {
  std::string all;
  for (const std::string& warning : parse(text).warnings) all += warning + "\n";
  return all;
}

// DeepSpeed makes one sub-group per tensor of 0, as the ZeRO-3 presets of axolotl have it.
TEST(PresetConfig, TakesEverySizeOfSubGroups) {
  EXPECT_EQ(parse(R"({"zero_optimization": {"sub_group_size": 0}})").max_chunk_elements, 0u);
  EXPECT_THAT(warnings_of(R"({"zero_optimization": {"sub_group_size": 0}})"),
              HasSubstr("the plan decides the size of chunks): sub_group_size"));
  EXPECT_EQ(parse(R"({"zero_optimization": {"sub_group_size": 100}})").max_chunk_elements, kTileElements);
  EXPECT_THAT(warnings_of(R"({"zero_optimization": {"sub_group_size": 100}})"), HasSubstr("the fewest"));
  EXPECT_EQ(problem(R"({"zero_optimization": {"sub_group_size": 0}, "terrace": {"chunk_elements": 8192}})"),
            "no problem");
}

TEST(PresetConfig, NamesHarmlessKeysOfShippedPresets) {
  const std::string warnings = warnings_of(
      R"({"cuda_visible_devices": 0, "comms_config": {"a": 1}, "tag": "x",
          "monitor_config": {"enabled": true, "tag": "y"}, "compile": {"backend": "inductor", "kwargs": {}}})");
  for (const char* key : {"cuda_visible_devices", "comms_config", "tag", "enabled", "backend", "kwargs"})
    EXPECT_THAT(warnings, HasSubstr(key));
}

// A file of an integration has "auto" and no optimizer: its trainer brings one.
TEST(PresetConfig, TrainsAsTheTrainerOfTheFileWould) {
  const TrainConfig filled = parse(R"({"train_batch_size": "auto", "bf16": {"enabled": "auto"}})");
  EXPECT_EQ(filled.optimizer.type, OptimizerType::adamw);
  EXPECT_EQ(filled.optimizer.learning_rate, 5e-5);
  EXPECT_EQ(filled.schedule.kind, LrScheduleKind::linear);
  EXPECT_EQ(filled.schedule.base_lr, std::vector<double>{5e-5});
  EXPECT_THAT(origin_of(filled, "optimizer.params.lr"), HasSubstr("Hugging Face"));
  EXPECT_THAT(origin_of(filled, "scheduler.type"), HasSubstr("Hugging Face"));
  EXPECT_EQ(value_of(filled, "scheduler.type"), "\"linear\"");

  const TrainConfig flagged =
      parse(R"({"train_batch_size": "auto"})", {{"optimizer.params.lr", "1e-4", "--lr"}});
  EXPECT_EQ(flagged.optimizer.learning_rate, 1e-4);
  EXPECT_EQ(origin_of(flagged, "optimizer.params.lr"), "--lr");

  const TrainConfig plain = parse(R"({"train_batch_size": 4})");
  EXPECT_EQ(plain.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(plain.schedule.kind, LrScheduleKind::constant);
  const TrainConfig own = parse(R"({"train_batch_size": "auto", "optimizer": {"type": "AdamW"}})");
  EXPECT_EQ(own.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(own.schedule.kind, LrScheduleKind::constant);
  EXPECT_EQ(parse(R"({"scheduler": {"type": "linear"}})").schedule.kind, LrScheduleKind::linear);
}

// In Python, which reads such a file for DeepSpeed, 1 and "true" and "auto" switch on.
TEST(PresetConfig, RefusesAFeatureHoweverItIsSwitchedOn) {
  for (const char* on : {"true", "\"true\"", "1", "\"auto\"", "\"yes\"", "0.5"}) {
    EXPECT_EQ(problem(std::string(R"({"elasticity": {"enabled": )") + on + "}}"),
              "ds.json:1:2: elasticity cannot be enabled: It would choose another batch size than the file. "
              "Remove it, or set \"enabled\": false.")
        << on;
  }
  for (const char* off : {"false", "\"False\"", "0", "null", "\"\""})
    EXPECT_EQ(problem(std::string(R"({"elasticity": {"enabled": )") + off + "}}"), "no problem") << off;
  EXPECT_EQ(problem(R"({"elasticity": {"enable": true, "max_train_batch_size": 2000}})"),
            "ds.json:1:17: unknown key \"enable\" in elasticity; did you mean \"enabled\"?");
  EXPECT_THAT(problem(R"({"compression_training": {"layer_reduction": {"Enabled": true}}})"),
              HasSubstr("unknown key \"Enabled\" in compression_training; did you mean \"enabled\"?"));
  EXPECT_THAT(warnings_of(R"({"quantize_training": {"quantize_bits": {"start_bits": 16}}})"),
              HasSubstr("top level (it is not enabled): quantize_training"));
  EXPECT_THAT(problem(R"({"sparse_attention": {"mode": "fixed"}})"),
              EndsWith("sparse_attention is not supported: It would change the model. Remove it."));
}

TEST(PresetConfig, NamesWhatToSetInThePlaceOfAnotherOptimizer) {
  EXPECT_EQ(problem(R"({"optimizer": {"type": "OneBitAdam"}})"),
            "ds.json:1:16: optimizer.type must be one of AdamW, Adam, Adagrad, Lion, SGD, Muon, not "
            "\"OneBitAdam\"; set \"Adam\" instead");
  EXPECT_THAT(problem(R"({"optimizer": {"type": "torch.optim.adamw"}})"), EndsWith("set \"AdamW\" instead"));
  EXPECT_THAT(problem(R"({"scheduler": {"type": "cosine"}})"), EndsWith("set \"WarmupCosineLR\" instead"));
  EXPECT_THAT(problem(R"({"optimizer": {"type": "Sophia"}})"), EndsWith("not \"Sophia\""));
}

// suggestion_cases.tsv: a section, a key that it does not have, and the suggestion. The package for Python is
// tested with the same file (tests/python/test_config.py).
TEST(PresetConfig, SuggestsWhatThePackageForPythonSuggests) {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "suggestion_cases.tsv");
  size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const size_t first = line.find('\t');
    const size_t second = line.find('\t', first + 1);
    EXPECT_EQ(suggestion_for(line.substr(0, first), line.substr(first + 1, second - first - 1)),
              line.substr(second + 1))
        << line;
  }
  EXPECT_GE(count, 25u);
}

TEST(PresetConfig, SaysHowTheBatchCanStay) {
  EXPECT_THAT(
      problem(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
                         "gradient_accumulation_steps": 2})"),
      EndsWith("in one process, which is 64 on 8 ranks; gradient_accumulation_steps 16 keeps the batch"));
  EXPECT_THAT(problem(R"({"train_batch_size": 63, "train_micro_batch_size_per_gpu": 4,
                         "gradient_accumulation_steps": 2})"),
              EndsWith("in one process; leave one of the three out"));
}

TEST(PresetConfig, ExplainsTheOneKeyThatIsWrong) {
  try {
    parse(R"({"zero_optimization": {"stage": 4}})");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(
        error.parts().advice.in(Door::cpp),
        AllOf(StartsWith("zero_optimization.stage: Says which offload"), EndsWith("(config_explanation())")));
  }
}

TEST(PresetConfig, KeepsMonitorsInTheirFolder) {
  for (const char* name : {"/abs", "..", "a/../../b"}) {
    EXPECT_THAT(problem(std::string(R"({"csv_monitor": {"enabled": true, "job_name": ")") + name + "\"}}"),
                HasSubstr("it is a folder in csv_monitor.output_path, and cannot leave it"))
        << name;
  }
  EXPECT_EQ(problem(R"({"csv_monitor": {"enabled": true, "job_name": "a/b"}})"), "no problem");
}

TEST(PresetConfig, RefusesScalesThatFp32CannotHold) {
  EXPECT_THAT(problem(R"({"fp16": {"enabled": true, "loss_scale": 1e-46}})"),
              HasSubstr("fp16.loss_scale is 1e-46, less than 1.18e-38, the smallest that fp32 can hold"));
  EXPECT_THAT(problem(R"({"fp16": {"enabled": true, "loss_scale": 1e300}})"), HasSubstr("must be a number"));
  EXPECT_THAT(
      problem(R"({"fp16": {"enabled": true, "initial_scale_power": 4, "min_loss_scale": 1e9}})"),
      HasSubstr("fp16.min_loss_scale is 1000000000, more than the scale that the run begins with, 16"));
  EXPECT_EQ(problem(R"({"fp16": {"enabled": true, "initial_scale_power": 4, "min_loss_scale": 16}})"),
            "no problem");
}

TEST(PresetConfig, SaysTheFirstProblemsOfThousandsAndCountsTheRest) {
  std::string text = "{";
  for (int i = 0; i < 30'000; ++i) text += "\"unknown_key_" + std::to_string(i) + "\": 1,\n";
  const std::string problems = problem(text + "}");
  EXPECT_THAT(problems, HasSubstr("ds.json:20:1: unknown key"));
  EXPECT_THAT(problems, Not(HasSubstr("ds.json:21:1")));
  EXPECT_THAT(problems, EndsWith("\nand 29980 more"));
}

}  // namespace
}  // namespace terrace::preset_config_test
