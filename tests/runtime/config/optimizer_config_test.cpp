// The optimizer section: what belongs to which optimizer, what is left out, and the precision of moments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "runtime/config/config_test_support.h"

namespace terrace::optimizer_config_test {
namespace {

using config_test::parse;
using config_test::problem;
using config_test::value_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string with_optimizer(const std::string& type, const std::string& params, const std::string& rest = "") {
  return fmt::format(R"({{"optimizer": {{"type": "{}", "params": {{{}}}}}{}}})", type, params, rest);
}
OptimizerConfig optimizer(const std::string& type, const std::string& params = "") {
  return parse(with_optimizer(type, params)).optimizer;
}

TEST(OptimizerConfig, HasTheDefaultsOfDeepSpeedAndTorch) {
  const OptimizerConfig adagrad = optimizer("Adagrad");
  EXPECT_EQ(adagrad.type, OptimizerType::adagrad);
  EXPECT_EQ(adagrad.learning_rate, 1e-2);
  EXPECT_EQ(adagrad.epsilon, 1e-10);
  EXPECT_EQ(adagrad.weight_decay, 0);
  const OptimizerConfig lion = optimizer("lion");  // in any case
  EXPECT_EQ(lion.type, OptimizerType::lion);
  EXPECT_EQ(lion.learning_rate, 1e-3);
  EXPECT_EQ(lion.beta1, 0.9);
  EXPECT_EQ(lion.beta2, 0.99);
  const OptimizerConfig sgd = optimizer("SGD");
  EXPECT_EQ(sgd.type, OptimizerType::sgd);
  EXPECT_EQ(sgd.learning_rate, 1e-3);
  EXPECT_EQ(sgd.momentum, 0);
  EXPECT_EQ(sgd.dampening, 0);
  EXPECT_FALSE(sgd.nesterov);
  EXPECT_EQ(optimizer("Adam").type, OptimizerType::adam);
  EXPECT_EQ(parse("{}").optimizer.type, OptimizerType::adamw);
}

TEST(OptimizerConfig, TakesEveryKeyOfItsOptimizer) {
  const OptimizerConfig sgd =
      optimizer("SGD", R"("lr": 0.1, "momentum": 0.9, "dampening": 0.25, "weight_decay": 1e-4)");
  EXPECT_EQ(sgd.learning_rate, 0.1);
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_EQ(sgd.dampening, 0.25);
  EXPECT_EQ(sgd.weight_decay, 1e-4);
  EXPECT_TRUE(optimizer("SGD", R"("momentum": 0.9, "nesterov": true)").nesterov);
  const OptimizerConfig lion = optimizer("Lion", R"("betas": [0.95, 0.98], "weight_decay": 0.3)");
  EXPECT_EQ(lion.beta1, 0.95);
  EXPECT_EQ(lion.beta2, 0.98);
  EXPECT_EQ(lion.weight_decay, 0.3);
  EXPECT_EQ(optimizer("Adagrad", R"("eps": 1e-6)").epsilon, 1e-6);
}

// Its arguments have the same defaults for every optimizer.
TEST(OptimizerConfig, FillsInWhatHuggingFacesTrainerDoesForAuto) {
  const OptimizerConfig lion = optimizer("Lion", R"("lr": "auto", "betas": "auto", "weight_decay": "auto")");
  EXPECT_EQ(lion.learning_rate, 5e-5);
  EXPECT_EQ(lion.beta2, 0.999);
  EXPECT_EQ(optimizer("Adagrad", R"("lr": "auto", "eps": "auto")").epsilon, 1e-8);
  EXPECT_EQ(optimizer("SGD", R"("momentum": "auto", "nesterov": "auto")").momentum, 0);
}

TEST(OptimizerConfig, NamesBothOptimizersOfAKeyThatIsNotItsOwn) {
  EXPECT_EQ(
      problem(with_optimizer("SGD", R"("betas": [0.9, 0.99])")),
      "ds.json:1:42: optimizer.params.betas is not a key of SGD; it belongs to AdamW, Adam, Lion and Muon");
  EXPECT_THAT(
      problem(with_optimizer("Lion", R"("eps": 1e-8)")),
      HasSubstr("optimizer.params.eps is not a key of Lion; it belongs to AdamW, Adam, Adagrad and Muon"));
  EXPECT_THAT(problem(with_optimizer("AdamW", R"("momentum": 0.9)")),
              HasSubstr("optimizer.params.momentum is not a key of AdamW; it belongs to SGD and Muon"));
  EXPECT_THAT(problem(with_optimizer("Adagrad", R"("adamw_mode": true)")), HasSubstr("not a key of Adagrad"));
  const std::string groups = R"(, "terrace": {"parameter_groups": [{"match": "*", "betas": [0.5, 0.6]}]})";
  EXPECT_THAT(problem(with_optimizer("SGD", "", groups)),
              HasSubstr("terrace.parameter_groups[0].betas is given, but optimizer.type (ds.json:1:16), SGD, "
                        "has no betas"));
  EXPECT_EQ(problem(with_optimizer("Lion", "", groups)), "no problem");
}

TEST(OptimizerConfig, RefusesNesterovsMomentumWithoutMomentumAsTorchDoes) {
  EXPECT_THAT(problem(with_optimizer("SGD", R"("nesterov": true)")),
              HasSubstr("optimizer.params.nesterov is true, but optimizer.params.momentum (default) is 0"));
  EXPECT_THAT(problem(with_optimizer("SGD", R"("nesterov": true, "momentum": 0.9, "dampening": 0.1)")),
              HasSubstr("but optimizer.params.dampening (ds.json:1:77) is 0.1"));
  EXPECT_THAT(parse(with_optimizer("SGD", R"("dampening": 0.1)")).warnings,
              ElementsAre(HasSubstr("optimizer.params (momentum is 0): dampening")));
}

TEST(OptimizerConfig, OneCycleLeavesTheMomentumOfAnOptimizerWithoutBetasAlone) {
  const std::string scheduler =
      R"(, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2}})";
  const TrainConfig sgd = parse(with_optimizer("SGD", R"("momentum": 0.9)", scheduler));
  EXPECT_FALSE(sgd.schedule.cycle.cycle_momentum);
  EXPECT_THAT(sgd.warnings,
              ElementsAre(HasSubstr("does not cycle the momentum (scheduler.params.cycle_momentum): "
                                    "optimizer.type (ds.json:1:16), SGD, has no betas")));
  EXPECT_TRUE(parse(with_optimizer("Lion", "", scheduler)).schedule.cycle.cycle_momentum);
}

TEST(OptimizerConfig, KeepsMomentsInBf16WhenEitherKeySaysSo) {
  const auto moments = [](const std::string& text) { return parse(text).optimizer.moment_type; };
  EXPECT_EQ(moments(R"({"bf16": {"enabled": true}})"), MomentType::fp32);
  EXPECT_EQ(moments(R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})"), MomentType::bf16);
  const std::string by_optimizer =
      with_optimizer("Adam", R"("fp32_optimizer_states": false)", R"(, "bf16": {"enabled": true})");
  EXPECT_EQ(moments(by_optimizer), MomentType::bf16);
  EXPECT_THAT(problem(with_optimizer("Adam", R"("fp32_optimizer_states": true)",
                                     R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true})")),
              AllOf(HasSubstr("optimizer.params.fp32_optimizer_states and bf16.bf16_optimizer_states"),
                    HasSubstr("are both true, and mean the opposite")));
}

TEST(OptimizerConfig, KeepsMomentsInTheTypeThatTheKeyOfOurOwnSays) {
  for (const MomentType type : {MomentType::fp32, MomentType::bf16, MomentType::int8}) {
    for (const char* precision : {"", R"("bf16": {"enabled": true}, )", R"("fp16": {"enabled": true}, )"}) {
      const std::string text =
          fmt::format(R"({{{}"terrace": {{"state_type": "{}"}}}})", precision, name_of(type));
      EXPECT_EQ(parse(text).optimizer.moment_type, type) << text;
    }
  }
  EXPECT_EQ(parse(R"({"terrace": {"state_type": "auto"}})").optimizer.moment_type, MomentType::fp32);
  const TrainConfig plain = parse(with_optimizer("SGD", "", R"(, "terrace": {"state_type": "int8"})"));
  EXPECT_EQ(plain.optimizer.moment_type, MomentType::fp32);
  EXPECT_THAT(plain.warnings, ElementsAre(HasSubstr("SGD without momentum keeps no moments")));
  EXPECT_THAT(problem(R"({"bf16": {"enabled": true, "bf16_optimizer_states": true},
                          "terrace": {"state_type": "int8"}})"),
              AllOf(HasSubstr("terrace.state_type is int8, but by bf16.bf16_optimizer_states"),
                    HasSubstr("moments are bf16")));
  EXPECT_THAT(problem(with_optimizer("Adam", R"("fp32_optimizer_states": true)",
                                     R"(, "bf16": {"enabled": true}, "terrace": {"state_type": "bf16"})")),
              HasSubstr("moments are fp32"));
  EXPECT_EQ(parse(R"({"bf16": {"enabled": true, "bf16_optimizer_states": true},
                      "terrace": {"state_type": "bf16"}})")
                .optimizer.moment_type,
            MomentType::bf16);
}

TEST(OptimizerConfig, KeepsMomentsInFp32WhereBf16IsNotThePrecision) {
  const std::string in_fp32 = with_optimizer("Adam", R"("fp32_optimizer_states": false)");
  EXPECT_EQ(parse(in_fp32).optimizer.moment_type, MomentType::fp32);
  EXPECT_THAT(parse(in_fp32).warnings, ElementsAre(HasSubstr("fp32_optimizer_states")));
  EXPECT_THAT(
      problem(with_optimizer("Adam", R"("fp32_optimizer_states": false)", R"(, "fp16": {"enabled": true})")),
      HasSubstr("is false, but fp16.enabled (ds.json:1:86) is true: moments are fp32 or bf16"));
  const TrainConfig off = parse(R"({"bf16": {"enabled": false, "bf16_optimizer_states": true}})");
  EXPECT_EQ(off.optimizer.moment_type, MomentType::fp32);
  EXPECT_THAT(off.warnings, ElementsAre(HasSubstr("bf16 (bf16.enabled is false): bf16_optimizer_states")));
  const TrainConfig plain =
      parse(with_optimizer("SGD", "", R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true})"));
  EXPECT_EQ(plain.optimizer.moment_type, MomentType::fp32);
  EXPECT_THAT(plain.warnings, ElementsAre(HasSubstr("SGD without momentum keeps no moments")));
}

// DeepSpeed asks for bf16 master weights beside bf16 moments; here they stay fp32, and that is said.
TEST(OptimizerConfig, AcceptsBf16MasterWeightsBesideBf16MomentsOnly) {
  const TrainConfig both = parse(
      R"({"bf16": {"enabled": true, "bf16_optimizer_states": true, "bf16_master_weights_and_grads": true}})");
  EXPECT_EQ(both.optimizer.moment_type, MomentType::bf16);
  EXPECT_THAT(both.warnings,
              ElementsAre(AllOf(HasSubstr("bf16.bf16_master_weights_and_grads (ds.json:1:59) has no effect"),
                                HasSubstr("master weights stay fp32"))));
  EXPECT_THAT(problem(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})"),
              HasSubstr("is true, but bf16.bf16_optimizer_states is not"));
}

TEST(OptimizerConfig, CompactStateNeedsBf16Parameters) {
  const TrainConfig config = parse(R"({"bf16": {"enabled": true}, "terrace": {"compact_state": true}})");
  EXPECT_TRUE(config.terrace.compact_state);
  EXPECT_EQ(value_of(config, "terrace.compact_state"), "true");
  EXPECT_FALSE(parse("{}").terrace.compact_state);
  EXPECT_THAT(
      problem(R"({"terrace": {"compact_state": true}})"),
      HasSubstr("terrace.compact_state is true, but bf16.enabled (default) is false: fp32 parameters"));
  EXPECT_THAT(problem(R"({"fp16": {"enabled": true}, "terrace": {"compact_state": true}})"),
              HasSubstr("terrace.compact_state is true, but fp16.enabled (ds.json:1:11) is true: fp16 "));
}

TEST(OptimizerConfig, CompactStateOnTheDeviceNeedsTheParametersThere) {
  const auto text = [](const char* parameters, const char* states) {
    return fmt::format(
        R"({{"bf16": {{"enabled": true}}, "terrace": {{"compact_state": true}}, "zero_optimization":
      {{"stage": 3, "offload_param": {{"device": "{}"}}, "offload_optimizer": {{"device": "{}"}}}}}})",
        parameters, states);
  };
  EXPECT_THAT(problem(text("cpu", "none")),
              AllOf(HasSubstr("terrace.compact_state is true, but zero_optimization.offload_param.device"),
                    HasSubstr("is cpu, and states are in device memory")));
  EXPECT_EQ(problem(text("none", "none")), "no problem");
  EXPECT_EQ(problem(text("cpu", "cpu")), "no problem");
}

TEST(OptimizerConfig, TakesTheModeOfTheUpdate) {
  const auto with_states = [](const char* device, const char* mode) {
    return fmt::format(R"({{"zero_optimization": {{"stage": 2, "offload_optimizer": {{"device": "{}"}}}},
      "terrace": {{"update": "{}"}}}})",
                       device, mode);
  };
  EXPECT_EQ(parse("{}").terrace.update, std::nullopt);
  EXPECT_EQ(value_of(parse("{}"), "terrace.update"), "\"auto\"");
  EXPECT_EQ(parse(with_states("cpu", "next_forward")).terrace.update, UpdateMode::next_forward);
  EXPECT_EQ(parse(with_states("cpu", "during_backward")).terrace.update, UpdateMode::during_backward);
  EXPECT_EQ(parse(with_states("none", "after_backward")).terrace.update, UpdateMode::after_backward);
  EXPECT_EQ(parse(with_states("none", "auto")).terrace.update, std::nullopt);
  EXPECT_THAT(
      problem(with_states("none", "next_forward")),
      AllOf(HasSubstr("terrace.update is next_forward, but zero_optimization.offload_optimizer.device"),
            HasSubstr("is none")));
  EXPECT_THAT(problem(with_states("cpu", "sometimes")), HasSubstr("must be one of auto, after_backward"));
}

// As Keller Jordan's MuonWithAuxAdam, which DeepSpeed trains with, has it.
TEST(OptimizerConfig, HasTheDefaultsOfDeepSpeedsMuon) {
  const OptimizerConfig muon = optimizer("muon");
  EXPECT_EQ(muon.type, OptimizerType::muon);
  EXPECT_EQ(muon.matrix_learning_rate, 0.02);
  EXPECT_EQ(muon.learning_rate, 3e-4);
  EXPECT_EQ(muon.beta1, 0.9);
  EXPECT_EQ(muon.beta2, 0.95);
  EXPECT_EQ(muon.epsilon, 1e-10);
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_EQ(muon.weight_decay, 0);
  EXPECT_TRUE(muon.nesterov);
  EXPECT_EQ(muon.muon, MuonSettings());
}

TEST(OptimizerConfig, TakesEveryKeyOfMuon) {
  const OptimizerConfig muon =
      optimizer("Muon", R"("momentum": 0, "nesterov": false, "weight_decay": 0.1, "betas": [0.8, 0.9],
                           "eps": 1e-6, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 7)");
  EXPECT_EQ(muon.momentum, 0);
  EXPECT_FALSE(muon.nesterov);
  EXPECT_EQ(muon.weight_decay, 0.1);
  EXPECT_EQ(muon.beta1, 0.8);
  EXPECT_EQ(muon.beta2, 0.9);
  EXPECT_EQ(muon.epsilon, 1e-6);
  EXPECT_TRUE(muon.muon.matches_adamw);
  EXPECT_EQ(muon.muon.iterations, 7u);
  EXPECT_THAT(problem(with_optimizer("Muon", R"("ns_steps": 100)")), HasSubstr("from 0 to 99"));
  EXPECT_THAT(problem(with_optimizer("Muon", R"("adjust_lr_fn": "spectral")")),
              HasSubstr("must be one of original, match_rms_adamw"));
  const TrainConfig told = parse(with_optimizer("Muon", R"("ns_method": "gram")"));
  EXPECT_THAT(told.warnings, ElementsAre(HasSubstr("ns_method")));
}

TEST(OptimizerConfig, HasOneRateOfMuonForBothOrOneForEach) {
  const auto rates = [](const std::string& params) {
    const OptimizerConfig muon = optimizer("Muon", params);
    return std::pair(muon.matrix_learning_rate, muon.learning_rate);
  };
  EXPECT_EQ(rates(R"("lr": 0.5)"), std::pair(0.5, 0.5));
  EXPECT_EQ(rates(R"("lr": 0.5, "muon_lr": 2)"), std::pair(2.0, 0.5));
  EXPECT_EQ(rates(R"("lr": 0.5, "adam_lr": 2)"), std::pair(0.5, 2.0));
  EXPECT_EQ(rates(R"("muon_lr": 2)"), std::pair(2.0, 3e-4));
  EXPECT_EQ(rates(R"("adam_lr": 2)"), std::pair(0.02, 2.0));
  EXPECT_EQ(rates(R"("lr": "auto")"), std::pair(5e-5, 5e-5));
  EXPECT_EQ(rates(R"("lr": 0.5, "muon_lr": "auto")"), std::pair(5e-5, 0.5));
  const TrainConfig shown = parse(with_optimizer("Muon", R"("lr": 0.5, "muon_lr": 2)"));
  EXPECT_EQ(value_of(shown, "optimizer.params.muon_lr"), "2");
  EXPECT_EQ(value_of(shown, "optimizer.params.adam_lr"), "0.5");
}

TEST(OptimizerConfig, LeavesTheKeysOfMuonToMuon) {
  for (const char* key :
       {R"("muon_lr": 1)", R"("adam_lr": 1)", R"("ns_steps": 5)", R"("adjust_lr_fn": "original")"})
    EXPECT_THAT(problem(with_optimizer("AdamW", key)),
                HasSubstr("is not a key of AdamW; it belongs to Muon"));
  for (const char* key : {R"("dampening": 0.1)", R"("adam_w_mode": true)", R"("bias_correction": true)"})
    EXPECT_THAT(problem(with_optimizer("Muon", key)), HasSubstr("is not a key of Muon"));
}

TEST(OptimizerConfig, KeepsTheMomentsOfMuonInAnyType) {
  for (const MomentType type : {MomentType::fp32, MomentType::bf16, MomentType::int8}) {
    const TrainConfig config = parse(with_optimizer(
        "Muon", R"("momentum": 0)", fmt::format(R"(, "terrace": {{"state_type": "{}"}})", name_of(type))));
    EXPECT_EQ(config.optimizer.moment_type, type);
    EXPECT_THAT(config.warnings, IsEmpty());
  }
}

TEST(OptimizerConfig, LetsMuonUpdateAfterBackwardOnTheProcessorAlone) {
  const auto with = [](const std::string& update, const std::string& ratio) {
    return with_optimizer("Muon", "",
                          fmt::format(R"(, "terrace": {{"update": "{}"}}, "zero_optimization":
      {{"stage": 2, "offload_optimizer": {{"device": "cpu", "ratio": {}}}}})",
                                      update, ratio));
  };
  EXPECT_EQ(parse(with("auto", "1")).terrace.update, std::nullopt);
  EXPECT_EQ(parse(with("after_backward", "1")).terrace.update, UpdateMode::after_backward);
  for (const char* mode : {"next_forward", "during_backward"}) {
    EXPECT_THAT(
        problem(with(mode, "1")),
        AllOf(HasSubstr(fmt::format("terrace.update is {}, but optimizer.type (ds.json:1:16), Muon,", mode)),
              HasSubstr("it updates after_backward")));
  }
  EXPECT_THAT(problem(with("auto", "0.5")),
              AllOf(HasSubstr("offload_optimizer.ratio is 0.5, but optimizer.type"), HasSubstr("must be 1")));
  EXPECT_EQ(problem(with("auto", "\"auto\"")), "no problem");
}

TEST(OptimizerConfig, SchedulersSetOrScaleTheRatesOfMuon) {
  const auto with = [](const std::string& params, const std::string& scheduler) {
    return parse(with_optimizer("Muon", params, R"(, "scheduler": )" + scheduler));
  };
  const std::string warmup = R"({"type": "WarmupLR", "params": {"warmup_num_steps": 2}})";
  EXPECT_EQ(value_of(with("", warmup), "scheduler.params.warmup_max_lr"), "[0.0003, 0.0003, 0.02]");
  EXPECT_EQ(value_of(with(R"("lr": 0.5)", warmup), "scheduler.params.warmup_max_lr"), "0.5");
  const TrainConfig set =
      with(R"("muon_lr": 0.5, "adam_lr": 0.25)", R"({"type": "WarmupLR", "params": {"warmup_max_lr": 1}})");
  EXPECT_THAT(set.warnings, ElementsAre(HasSubstr("muon_lr"), HasSubstr("adam_lr")));
  EXPECT_EQ(
      with("", R"({"type": "WarmupLR", "params": {"warmup_max_lr": [1, 2, 3]}})").schedule.maximum_lr.size(),
      3u);
  EXPECT_THAT(problem(with_optimizer(
                  "Muon", "", R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [1, 2]}})")),
              HasSubstr("needs one, or 3: weights that decay, weights that do not, matrices"));
  EXPECT_THAT(
      with("", R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2}})").warnings,
      ElementsAre(HasSubstr("Muon, has no betas of its own")));
}

}  // namespace
}  // namespace terrace::optimizer_config_test
