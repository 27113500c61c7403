#include <terrace/runtime/config/parameter_groups.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/base/error.h>

#include "runtime/config/config_test_support.h"

namespace terrace::parameter_groups_test {
namespace {

using config_test::parse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TensorSpec tensor(const std::string& name, uint32_t group) {
  TensorSpec spec;
  spec.name = name;
  spec.shape = {4};
  spec.group = group;
  return spec;
}

std::vector<TensorSpec> small_model() {
  return {tensor("wte.weight", 0), tensor("h.0.ln_1.weight", 1), tensor("h.0.attn.c_attn.weight", 0),
          tensor("h.0.attn.c_attn.bias", 1)};
}

std::vector<uint32_t> groups_of(const TrainConfig& config) {
  std::vector<TensorSpec> tensors = small_model();
  resolve_parameter_groups(config, tensors);
  std::vector<uint32_t> groups;
  for (const TensorSpec& spec : tensors) groups.push_back(spec.group);
  return groups;
}

std::vector<double> rates(GroupSettings& settings, uint64_t update) {
  std::vector<double> values;
  for (const OptimizerSettings& group : settings.at(update)) values.push_back(group.lr);
  return values;
}

TEST(ParameterGroups, LeavesTheModelsOwnTwoGroupsWithoutPatterns) {
  EXPECT_THAT(groups_of(parse("{}")), ElementsAre(0, 1, 0, 1));
  GroupSettings settings(
      parse(R"({"optimizer": {"params": {"weight_decay": 0.1, "eps": 1e-6, "betas": [0.8, 0.9],
                                   "bias_correction": false}}})"),
      10);
  const auto groups = settings.at(3);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_EQ(groups[1].eps, 1e-6);
  EXPECT_EQ(groups[1].beta1, 0.8);
  EXPECT_EQ(groups[1].beta2, 0.9);
  EXPECT_FALSE(groups[1].bias_correction);
}

TEST(ParameterGroups, SayWhoseUpdateIsComputedAndWhatItsRecordsHold) {
  const auto config = [](const std::string& type, const std::string& params, const std::string& rest = "") {
    return parse("{\"optimizer\": {\"type\": \"" + type + "\", \"params\": {" + params + "}}" + rest + "}");
  };
  const TrainConfig sgd = config("SGD", R"("momentum": 0.9, "nesterov": true, "weight_decay": 0.1)");
  GroupSettings settings(sgd, 10);
  EXPECT_EQ(settings.at(0)[0].kind, OptimizerKind::sgd);
  EXPECT_EQ(settings.at(0)[0].momentum, 0.9);
  EXPECT_TRUE(settings.at(0)[1].nesterov);
  EXPECT_EQ(settings.at(0)[1].weight_decay, 0);
  EXPECT_EQ(record_layout(sgd).moment_count, 1u);
  EXPECT_EQ(record_layout(config("SGD", "")).tile_bytes(), 16u * 1024);
  EXPECT_EQ(record_layout(config("Adagrad", "")).tile_bytes(), 32u * 1024);
  EXPECT_EQ(GroupSettings(config("Lion", ""), 10).at(0)[0].beta2, 0.99);
  EXPECT_EQ(record_layout(config("AdamW", "")).tile_bytes(), 48u * 1024);
  const RecordLayout small =
      record_layout(config("Lion", "", R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true},
                                            "terrace": {"compact_state": true})"));
  EXPECT_EQ(small.tile_bytes(), 16u * 1024);
  EXPECT_EQ(small.canonical().tile_bytes(), 24u * 1024);
}

TEST(ParameterGroups, GivesATensorToTheFirstGroupThatMatches) {
  const TrainConfig config = parse(R"({"terrace": {"parameter_groups": [
      {"match": ["*.bias", "wte*"], "lr": 1}, {"match": "h.0.*", "lr": 2, "weight_decay": 0.5}]}})");
  EXPECT_THAT(groups_of(config), ElementsAre(0, 3, 2, 1));
  GroupSettings settings(config, 10);
  EXPECT_THAT(rates(settings, 0), ElementsAre(1, 1, 2, 2, 1e-3, 1e-3));
  EXPECT_EQ(settings.at(0)[0].weight_decay, 0);
  EXPECT_EQ(settings.at(0)[2].weight_decay, 0.5);
  EXPECT_EQ(settings.at(0)[3].weight_decay, 0.5);  // said for all of the group
}

TEST(ParameterGroups, TakesThePartsOfATableForOneWeight) {
  std::vector<TensorSpec> tensors = {tensor("wte.weight[0]", 0), tensor("wte.weight[1]", 0),
                                     tensor("ln_f.weight", 1)};
  resolve_parameter_groups(parse(R"({"terrace": {"parameter_groups": [{"match": "wte.weight"}]}})"), tensors);
  EXPECT_EQ(tensors[0].group, 0u);
  EXPECT_EQ(tensors[1].group, 0u);
  EXPECT_EQ(tensors[2].group, 3u);
}

TEST(ParameterGroups, TakesFromTheOptimizerWhatAGroupLeavesOut) {
  GroupSettings settings(
      parse(R"({"optimizer": {"params": {"lr": 3, "weight_decay": 0.1, "betas": [0.5, 0.6]}},
      "terrace": {"parameter_groups": [{"match": "a", "betas": [0.7, 0.8]}, {"match": "b", "eps": 1e-4}]}})"),
      10);
  const auto groups = settings.at(0);
  ASSERT_EQ(groups.size(), 6u);
  EXPECT_EQ(groups[0].beta1, 0.7);
  EXPECT_EQ(groups[0].beta2, 0.8);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_EQ(groups[2].beta1, 0.5);
  EXPECT_EQ(groups[2].eps, 1e-4);
  EXPECT_EQ(groups[4].eps, 1e-8);
  EXPECT_EQ(groups[2].lr, 3);
}

TEST(ParameterGroups, NamesTheNearestTensorsForAPatternThatMatchesNone) {
  const TrainConfig config = parse(R"({"terrace": {"parameter_groups": [{"match": ["wte*", "*.attm.*"]}]}})");
  std::vector<TensorSpec> tensors = small_model();
  try {
    resolve_parameter_groups(config, tensors);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.what(),
                HasSubstr("ds.json:1:14: terrace.parameter_groups[0].match: no weight is called "
                          "\"*.attm.*\""));
    EXPECT_THAT(error.what(),
                HasSubstr("the nearest names are \"h.0.attn.c_attn.weight\", \"h.0.attn.c_attn.bias\""));
  }
}

// As the schedulers do with torch's parameter groups.
TEST(ParameterGroups, LetsSchedulersSetOrScaleTheRates) {
  const auto at = [](std::string_view scheduler, uint64_t update) {
    GroupSettings settings(parse(R"({"optimizer": {"params": {"lr": 0.5}},
        "terrace": {"parameter_groups": [{"match": "a", "lr": 0.25}]}, "scheduler": )" +
                                 std::string(scheduler) + "}"),
                           100);
    return rates(settings, update);
  };
  EXPECT_THAT(at(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 2}})", 9),
              ElementsAre(0.25, 0.25, 0.5, 0.5));
  EXPECT_THAT(at(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 2, "warmup_max_lr": "auto"}})", 9),
              ElementsAre(0.25, 0.25, 0.5, 0.5));
  EXPECT_THAT(at(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 2, "warmup_max_lr": 2}})", 9),
              ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(at(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 2, "warmup_max_lr": [2, 3, 4]}})", 9),
              ElementsAre(2, 2, 3, 4));
  EXPECT_THAT(at(R"({"type": "LRRangeTest", "params": {"lr_range_test_step_size": 1}})", 1),
              ElementsAre(2e-3, 2e-3, 2e-3, 2e-3));
  const std::vector<double> cosine =
      at(R"({"type": "WarmupCosineLR", "params": {"warmup_num_steps": 10}})", 40);
  EXPECT_EQ(cosine[2], 2 * cosine[0]);
}

TEST(ParameterGroups, EndsADecayWithTheRunUnlessToldOtherwise) {
  GroupSettings settings(
      parse(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2}}})"), 20);
  EXPECT_GT(rates(settings, 20)[0], 0);
  EXPECT_EQ(rates(settings, 21)[0], 0);
}

TEST(ParameterGroups, CyclesTheMomentumOfAllGroups) {
  const TrainConfig config = parse(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
      "cycle_max_lr": 1, "cycle_first_step_size": 4, "decay_step_size": 1, "decay_mom_rate": 0.05}}})");
  GroupSettings settings(config, 10);
  EXPECT_DOUBLE_EQ(settings.at(4)[0].beta1, 0.8);
  EXPECT_DOUBLE_EQ(settings.at(8)[1].beta1, 0.9);
  EXPECT_EQ(settings.at(8)[1].beta2, 0.99);
  try {
    GroupSettings(config, 100);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("beta1 would reach 1 in step 12 of 100"));
  }
}

TEST(ParameterGroups, SaysThatAWarmupIsLongerThanTheRun) {
  LrScheduleOptions schedule;
  EXPECT_THAT(schedule_warning(schedule, 10), IsEmpty());
  schedule.kind = LrScheduleKind::warmup;
  EXPECT_THAT(schedule_warning(schedule, 1001), IsEmpty());
  EXPECT_THAT(schedule_warning(schedule, 1000), HasSubstr("warms up for 1000 steps"));
}

TensorSpec of_shape(const std::string& name, std::vector<uint64_t> shape, uint32_t group) {
  TensorSpec spec = tensor(name, group);
  spec.shape = std::move(shape);
  return spec;
}

std::vector<TensorSpec> model_with_matrices() {
  return {of_shape("wte.weight[0]", {8, 4}, 0), of_shape("h.0.ln_1.weight", {4}, 1),
          of_shape("h.0.attn.c_attn.weight", {4, 12}, 0), of_shape("h.0.attn.c_attn.bias", {12}, 1),
          of_shape("lm_head.weight", {8, 4}, 0)};
}

TEST(ParameterGroups, TakesTrainedMatricesForMuonsButNoEmbeddingsAndNoHead) {
  const auto is_one = [](const std::string& name, bool trainable = true) {
    TensorSpec spec = of_shape(name, {4, 4}, 0);
    spec.trainable = trainable;
    return is_muon_matrix(spec);
  };
  EXPECT_TRUE(is_one("transformer.h.0.attn.c_attn.weight"));
  EXPECT_TRUE(is_one("model.layers.0.self_attn.q_proj.lora_A.weight"));
  EXPECT_TRUE(is_one("model.layers.0.self_attn.q_proj.lora_B.weight"));
  EXPECT_TRUE(is_one("weight"));
  EXPECT_FALSE(is_one("transformer.h.0.attn.c_attn.weight", false));
  for (const char* name : {"transformer.wte.weight", "transformer.wte.weight[3]", "transformer.wpe.weight",
                           "model.embed_tokens.weight", "lm_head.weight", "lm_head.weight[0]"})
    EXPECT_FALSE(is_one(name)) << name;
  EXPECT_FALSE(is_muon_matrix(of_shape("h.0.ln_1.weight", {4}, 1)));
}

TEST(ParameterGroups, HasAThirdGroupOfMatricesWithMuonAlone) {
  std::vector<TensorSpec> tensors = model_with_matrices();
  resolve_parameter_groups(parse(R"({"optimizer": {"type": "Muon"}})"), tensors);
  const std::vector<uint32_t> expected = {0, 1, 2, 1, 0};
  for (size_t t = 0; t < tensors.size(); ++t) {
    EXPECT_EQ(tensors[t].group, expected[t]) << tensors[t].name;
    EXPECT_EQ(tensors[t].by_matrix, expected[t] == 2) << tensors[t].name;
  }
  tensors = model_with_matrices();
  resolve_parameter_groups(parse("{}"), tensors);
  EXPECT_EQ(tensors[2].group, 0u);
  EXPECT_FALSE(tensors[2].by_matrix);
}

TEST(ParameterGroups, UpdatesMatricesByMuonAndTheRestByAdamW) {
  const TrainConfig config = parse(R"({"optimizer": {"type": "Muon", "params": {"muon_lr": 2, "adam_lr": 3,
      "weight_decay": 0.1, "eps": 1e-4, "betas": [0.5, 0.6], "momentum": 0.75, "ns_steps": 3,
      "adjust_lr_fn": "match_rms_adamw"}}})");
  GroupSettings settings(config, 10);
  const auto groups = settings.at(0);
  ASSERT_EQ(groups.size(), 3u);
  for (const size_t rest : {0, 1}) {
    EXPECT_EQ(groups[rest].kind, OptimizerKind::adam);
    EXPECT_TRUE(groups[rest].adamw_mode);
    EXPECT_EQ(groups[rest].lr, 3);
    EXPECT_EQ(groups[rest].eps, 1e-4);
    EXPECT_EQ(groups[rest].beta1, 0.5);
    EXPECT_EQ(groups[rest].beta2, 0.6);
    EXPECT_EQ(groups[rest].weight_decay, rest == 0 ? 0.1 : 0);
  }
  EXPECT_EQ(groups[2].kind, OptimizerKind::muon);
  EXPECT_EQ(groups[2].lr, 2);
  EXPECT_EQ(groups[2].eps, 1e-7);
  EXPECT_EQ(groups[2].weight_decay, 0.1);
  EXPECT_EQ(groups[2].momentum, 0.75);
  EXPECT_TRUE(groups[2].nesterov);
  EXPECT_EQ(groups[2].muon.iterations, 3u);
  EXPECT_TRUE(groups[2].muon.matches_adamw);
  EXPECT_EQ(record_layout(config).moment_count, 2u);
}

TEST(ParameterGroups, GivesAGroupOfMuonToItsMatricesAndToItsOtherWeights) {
  const TrainConfig config = parse(R"({"optimizer": {"type": "Muon", "params": {"weight_decay": 0.1}},
      "terrace": {"parameter_groups": [{"match": "h.0.*", "lr": 1, "eps": 1e-3},
                                       {"match": "lm_head*", "weight_decay": 0.5}]}})");
  std::vector<TensorSpec> tensors = model_with_matrices();
  resolve_parameter_groups(config, tensors);
  const std::vector<uint32_t> expected = {6, 1, 2, 1, 3};
  for (size_t t = 0; t < tensors.size(); ++t) EXPECT_EQ(tensors[t].group, expected[t]) << tensors[t].name;
  GroupSettings settings(config, 10);
  EXPECT_THAT(rates(settings, 0), ElementsAre(1, 1, 1, 3e-4, 3e-4, 0.02, 3e-4, 3e-4, 0.02));
  const auto groups = settings.at(0);
  EXPECT_EQ(groups[0].eps, 1e-3);
  EXPECT_EQ(groups[2].eps, 1e-7);
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_EQ(groups[2].weight_decay, 0.1);
  EXPECT_EQ(groups[5].weight_decay, 0.5);
}

TEST(ParameterGroups, LetsSchedulersSetOrScaleTheRatesOfMuon) {
  const auto at = [](std::string_view scheduler, uint64_t update) {
    GroupSettings settings(
        parse(R"({"optimizer": {"type": "Muon", "params": {"adam_lr": 0.25, "muon_lr": 0.5}},
        "terrace": {"parameter_groups": [{"match": "a", "lr": 1}]}, "scheduler": )" +
              std::string(scheduler) + "}"),
        100);
    return rates(settings, update);
  };
  EXPECT_THAT(at(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 2}})", 9),
              ElementsAre(1, 1, 1, 0.25, 0.25, 0.5));
  EXPECT_THAT(
      at(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 2, "warmup_max_lr": [2, 3, 4, 5]}})", 9),
      ElementsAre(2, 2, 2, 3, 4, 5));
  const std::vector<double> cosine =
      at(R"({"type": "WarmupCosineLR", "params": {"warmup_num_steps": 10}})", 40);
  EXPECT_EQ(cosine[5], 2 * cosine[3]);
}

}  // namespace
}  // namespace terrace::parameter_groups_test
