// What the sections about precision, activations, monitors, groups and schedulers come to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include <terrace/runtime/config/train_config.h>

#include "runtime/config/config_test_support.h"

namespace terrace::train_config_settings_test {
namespace {

using config_test::origin_of;
using config_test::parse;
using config_test::problem;
using config_test::value_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(TrainConfigSettings, ReadsTheLossScaleOfFp16) {
  const TrainConfig plain = parse(R"({"fp16": {"enabled": true}})");
  EXPECT_EQ(plain.precision, DataType::fp16);
  EXPECT_EQ(plain.fp16.loss_scale, 0);
  EXPECT_EQ(plain.fp16.initial_scale_power, 16u);
  EXPECT_EQ(plain.fp16.loss_scale_window, 1000u);
  EXPECT_EQ(plain.fp16.hysteresis, 2u);
  EXPECT_FALSE(plain.fp16.consecutive_hysteresis);
  EXPECT_EQ(plain.fp16.min_loss_scale, 1);
  const TrainConfig config = parse(R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12,
      "loss_scale_window": 50, "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 0.5}})");
  EXPECT_EQ(config.fp16.initial_scale_power, 12u);
  EXPECT_EQ(config.fp16.loss_scale_window, 50u);
  EXPECT_EQ(config.fp16.hysteresis, 3u);
  EXPECT_TRUE(config.fp16.consecutive_hysteresis);
  EXPECT_EQ(config.fp16.min_loss_scale, 0.5);
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST(TrainConfigSettings, RefusesLossScalesThatAreNone) {
  const auto with = [](std::string_view keys) {
    return problem(R"({"fp16": {"enabled": true, )" + std::string(keys) + "}}");
  };
  EXPECT_EQ(with(R"("loss_scale": true)"),
            "ds.json:1:42: fp16.loss_scale must be a number from 0 to 3.4e+38, not true");
  EXPECT_THAT(with(R"("loss_scale": -1)"), HasSubstr("a number from 0 to 3.4e+38, not -1"));
  EXPECT_THAT(with(R"("loss_scale": "inf")"), HasSubstr("not \"inf\""));
  EXPECT_THAT(with(R"("loss_scale": 1e999)"), HasSubstr("is not a number"));
  EXPECT_THAT(with(R"("hysteresis": 0)"), HasSubstr("of at least 1, not 0"));
  EXPECT_THAT(with(R"("min_loss_scale": 0)"),
              HasSubstr("fp16.min_loss_scale is 0, but the loss scale is dynamic"));
  EXPECT_THAT(with(R"("loss_scale_window": 0)"), HasSubstr("must be above 0"));
  EXPECT_EQ(with(R"("loss_scale": 128, "loss_scale_window": 0)"), "no problem");
  EXPECT_THAT(with(R"("fp16_master_weights_and_grads": true)"), HasSubstr("always fp32"));
}

TEST(TrainConfigSettings, SaysWhichKeysOfTheLossScaleAreIdle) {
  EXPECT_THAT(parse(R"({"fp16": {"loss_scale": 4, "hysteresis": 1}})").warnings,
              ElementsAre(HasSubstr("fp16 (fp16.enabled is false): loss_scale, hysteresis")));
  EXPECT_THAT(parse(R"({"fp16": {"enabled": true, "loss_scale": 4, "hysteresis": 1}})").warnings,
              ElementsAre(HasSubstr("fp16 (fp16.loss_scale is not 0): hysteresis")));
}

TEST(TrainConfigSettings, SaysWhichKeysOfAGpuAreIdle) {
  EXPECT_THAT(parse(R"({"terrace": {"gpu_products": "own", "gpu_compute": "fp32"}})").warnings,
              ElementsAre(HasSubstr("terrace (terrace.device is simulated): gpu_products, gpu_compute")));
  const TrainConfig there =
      parse(R"({"terrace": {"device": "cuda", "gpu_products": "own", "gpu_compute": "fp32"}})");
  EXPECT_THAT(there.warnings, ElementsAre());
  EXPECT_EQ(there.terrace.gpu_products, GpuProducts::own);
  EXPECT_EQ(there.terrace.compute, ComputeType::fp32);
}

TEST(TrainConfigSettings, MultipliesInTheTypeThatIsAskedFor) {
  const auto products = [](const std::string& rest) {
    return processor_products(parse(R"({"terrace": {"compute": )" + rest));
  };
  EXPECT_EQ(processor_products(parse("{}")), ProductType::fp32);
  EXPECT_EQ(products(R"("auto"}, "bf16": {"enabled": true}})"), ProductType::fp32);
  EXPECT_EQ(products(R"("fp32"}, "bf16": {"enabled": true}})"), ProductType::fp32);
  EXPECT_EQ(products(R"("bf16"}})"), ProductType::bf16);
  EXPECT_EQ(products(R"("BF16"}, "fp16": {"enabled": true}})"), ProductType::bf16);
  EXPECT_EQ(products(R"("parameter_type"}, "bf16": {"enabled": true}})"), ProductType::bf16);
  EXPECT_EQ(products(R"("parameter_type"}})"), ProductType::fp32);
  EXPECT_EQ(products(R"("bf16_amx"}})"), ProductType::bf16_amx);
  const TrainConfig fp16 = parse(R"({"terrace": {"compute": "parameter_type"}, "fp16": {"enabled": true}})");
  EXPECT_EQ(processor_products(fp16), ProductType::fp32);
  EXPECT_THAT(fp16.warnings,
              ElementsAre(HasSubstr("the processor multiplies fp16 parameters in fp32): compute")));
  EXPECT_THAT(config_test::problem(R"({"terrace": {"compute": "fp8"}})"), HasSubstr("fp32, bf16"));
}

// The old name was of a GPU alone: a file that has it computes on the processor as it did.
TEST(TrainConfigSettings, TakesTheOldNameOfComputeForAGpuAlone) {
  const TrainConfig old =
      parse(R"({"terrace": {"gpu_compute": "parameter_type", "device": "auto"}, "bf16": {"enabled": true}})");
  EXPECT_EQ(old.terrace.compute, ComputeType::automatic);
  EXPECT_EQ(processor_products(old), ProductType::fp32);
  // auto asks for nothing, by whichever name.
  EXPECT_EQ(parse(R"({"terrace": {"gpu_compute": "fp32", "compute": "auto"}})").terrace.compute,
            ComputeType::fp32);
  EXPECT_EQ(parse(R"({"terrace": {"gpu_compute": "auto", "compute": "bf16"}})").terrace.compute,
            ComputeType::bf16);
  EXPECT_THAT(config_test::problem(R"({"terrace": {"gpu_compute": "fp32", "compute": "bf16"}})"),
              HasSubstr("both mean terrace.compute"));
}

TEST(TrainConfigSettings, LetsFp16WinOverAutomaticBf16) {
  EXPECT_EQ(parse(R"({"fp16": {"enabled": true}, "bf16": {"enabled": "auto"}})").precision, DataType::fp16);
  EXPECT_EQ(parse(R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}})").precision, DataType::bf16);
  EXPECT_EQ(parse(R"({"fp16": {"enabled": "auto"}})").precision, DataType::fp32);
}

TEST(TrainConfigSettings, AccumulatesGradientsInTheTypeThatIsAskedFor) {
  const auto type = [](std::string_view name) {
    return parse(R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": )" + std::string(name) +
                 "}}")
        .grad_accum_type;
  };
  EXPECT_EQ(type("\"fp32\""), DataType::fp32);
  EXPECT_EQ(type("\"float32\""), DataType::fp32);
  EXPECT_EQ(type("\"bf16\""), DataType::bf16);
  EXPECT_EQ(type("null"), std::nullopt);
  EXPECT_EQ(type("\"none\""), std::nullopt);
  EXPECT_EQ(type("\"auto\""), std::nullopt);
  EXPECT_EQ(problem(R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "half"}})"),
            "ds.json:1:44: data_types.grad_accum_dtype is fp16, but parameters are bf16; it must be fp32 or "
            "the same");
}

TEST(TrainConfigSettings, ReadsWhereKeptInputsWait) {
  const auto place = [](const std::string& text) { return parse(text).activations.offload; };
  EXPECT_EQ(place(R"({"terrace": {"offload_activations": "cpu"}})"), ActivationOffload::cpu);
  EXPECT_EQ(place(R"({"terrace": {"offload_activations": "auto"}})"), ActivationOffload::automatic);
  EXPECT_EQ(place(R"({"terrace": {"offload_activations": "none"}})"), ActivationOffload::none);
  EXPECT_EQ(
      place(R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}},
      "terrace": {"offload_activations": "nvme"}})"),
      ActivationOffload::nvme);
  EXPECT_EQ(
      problem(R"({"terrace": {"offload_activations": "nvme"}})"),
      "ds.json:1:14: terrace.offload_activations is nvme, but nothing else is: place optimizer states or "
      "parameters there too (zero_optimization.offload_optimizer.device, offload_param.device)");
  EXPECT_EQ(
      problem(
          R"({"activation_checkpointing": {"cpu_checkpointing": true}, "terrace": {"offload_activations": "none"}})"),
      "ds.json:1:71: terrace.offload_activations is none, but activation_checkpointing.cpu_checkpointing "
      "(ds.json:1:31) is true, which is cpu");
  EXPECT_THAT(problem(R"({"terrace": {"offload_activations": "cpu", "checkpoint_activations": false}})"),
              HasSubstr("there are no kept inputs to move"));
}

TEST(TrainConfigSettings, ReadsWhatIsKeptOfForward) {
  const TrainConfig plain = parse("{}");
  EXPECT_TRUE(plain.activations.checkpoint);
  EXPECT_EQ(plain.activations.checkpoint_count, 0u);
  EXPECT_EQ(plain.activations.offload, ActivationOffload::none);
  const TrainConfig config = parse(R"({"activation_checkpointing": {"number_checkpoints": 4,
      "cpu_checkpointing": true, "partition_activations": true}})");
  EXPECT_EQ(config.activations.checkpoint_count, 4u);
  EXPECT_EQ(config.activations.offload, ActivationOffload::cpu);
  EXPECT_THAT(config.warnings, ElementsAre(HasSubstr("activation_checkpointing: partition_activations")));
  EXPECT_FALSE(parse(R"({"terrace": {"checkpoint_activations": false}})").activations.checkpoint);
  EXPECT_THAT(problem(R"({"terrace": {"checkpoint_activations": false},
                          "activation_checkpointing": {"cpu_checkpointing": true}})"),
              HasSubstr("but terrace.checkpoint_activations (ds.json:1:14) is false"));
}

TEST(TrainConfigSettings, ReadsMonitorsWhereverFilesHaveThem) {
  const TrainConfig plain = parse("{}");
  EXPECT_FALSE(plain.monitor.tensorboard.enabled);
  EXPECT_EQ(plain.monitor.csv.job_name, "DeepSpeedJobName");
  const TrainConfig config = parse(R"({"wall_clock_breakdown": true,
      "tensorboard": {"enabled": true, "output_path": "out/", "job_name": "first"},
      "monitor": {"csv_monitor": {"enabled": true, "job_name": "second"}, "wandb": {"enabled": false}}})");
  EXPECT_TRUE(config.wall_clock_breakdown);
  EXPECT_TRUE(config.monitor.tensorboard.enabled);
  EXPECT_EQ(config.monitor.tensorboard.output_path, "out/");
  EXPECT_EQ(config.monitor.tensorboard.job_name, "first");
  EXPECT_TRUE(config.monitor.csv.enabled);
  EXPECT_TRUE(config.monitor.csv.output_path.empty());
  EXPECT_EQ(origin_of(config, "csv_monitor.job_name"),
            "mapped from monitor.csv_monitor.job_name (ds.json:3:52)");
  EXPECT_THAT(config.warnings, ElementsAre(HasSubstr("  monitor: wandb")));
  EXPECT_THAT(problem(R"({"tensorboard": {"enable": true}})"), HasSubstr("did you mean \"enabled\"?"));
}

// Somebody will look for these curves after the run.
TEST(TrainConfigSettings, WarnsByItselfOfAMonitorThatIsWanted) {
  const TrainConfig config = parse(R"({"wandb": {"enabled": true, "project": "p"}, "dump_state": true,
                                       "monitor": {"comet": {"enabled": true}}})");
  EXPECT_THAT(
      config.warnings,
      ElementsAre(
          HasSubstr("ds.json:1:2: wandb works in Python only: Scalars of the program go to tensorboard"),
          HasSubstr("monitor.comet works in Python only"), HasSubstr("dump_state")));
  EXPECT_THAT(config.warnings[2], AllOf(Not(HasSubstr("wandb")), Not(HasSubstr("comet"))));
  EXPECT_THAT(problem(R"({"wandb": {"enable": true}})"), HasSubstr("did you mean \"enabled\"?"));
}

TEST(TrainConfigSettings, SaysOneMisunderstandingOnce) {
  const std::string zenflow = problem(
      R"({"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1, "update_interval": 4, "overlap_step": true}}})");
  EXPECT_THAT(zenflow, HasSubstr("zenflow.topk_ratio cannot be 0.1: ZenFlow changes"));
  EXPECT_THAT(zenflow, HasSubstr("; the same holds for update_interval and overlap_step"));
  EXPECT_THAT(zenflow, Not(HasSubstr(".;")));
  EXPECT_EQ(zenflow.find("ZenFlow changes"), zenflow.rfind("ZenFlow changes"));
  EXPECT_THAT(problem(R"({"bf16": true})"), HasSubstr(R"(write "bf16": {"enabled": true})"));
}

TEST(TrainConfigSettings, ReadsAdaptersAndFrozenWeights) {
  EXPECT_FALSE(parse("{}").lora.has_value());
  EXPECT_EQ(parse(R"({"terrace": {"lora": {}}})").lora->rank, 8u);
  const TrainConfig config = parse(R"({"terrace": {"frozen": "wte*",
      "lora": {"r": 4, "lora_alpha": 32, "target_modules": ["*.q_proj", "*.v_proj"]}}})");
  EXPECT_THAT(config.frozen, ElementsAre("wte*"));
  EXPECT_EQ(config.lora->rank, 4u);
  EXPECT_EQ(config.lora->alpha, 32);
  EXPECT_THAT(config.lora->targets, ElementsAre("*.q_proj", "*.v_proj"));
  EXPECT_EQ(value_of(config, "terrace.lora.targets"), R"(["*.q_proj", "*.v_proj"])");
  EXPECT_THAT(problem(R"({"terrace": {"frozen": [1]}})"), HasSubstr("a text or a list of texts, not [1]"));
  EXPECT_THAT(problem(R"({"terrace": {"lora": {"targets": []}}})"), HasSubstr("at least one, not []"));
  EXPECT_EQ(config.quantize_base, WeightCode::none);
  EXPECT_EQ(parse(R"({"terrace": {"lora": {}, "quantize_base": "nf4"}})").quantize_base, WeightCode::nf4);
  EXPECT_THAT(problem(R"({"terrace": {"quantize_base": "int8"}})"),
              HasSubstr("int8, but without terrace.lora"));
  EXPECT_THAT(config.warnings, ElementsAre(HasSubstr("only the adapters are trained")));
}

TEST(TrainConfigSettings, SaysWhichLimitAValueMisses) {
  EXPECT_THAT(problem(R"({"gradient_accumulation_steps": 100000000000})"),
              HasSubstr("of at least 1 and at most 4294967295, not 100000000000"));
  EXPECT_THAT(problem(R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 1.0]}}})"),
              HasSubstr("from 0 to below 1, not [0.9, 1.0]"));
}

TEST(TrainConfigSettings, RefusesMoreMicroBatchesThanArePlanned) {
  EXPECT_EQ(parse(R"({"gradient_accumulation_steps": 16384})").batch.micro_batches, 16384u);
  EXPECT_THAT(problem(R"({"gradient_accumulation_steps": 16385})"),
              HasSubstr("16384 are the most: lower gradient_accumulation_steps to 16384 or less"));
  // Larger micro-batches would be as many.
  EXPECT_THAT(problem(R"({"gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": 16,
                          "terrace": {"ranks": 10000}})"),
              AllOf(HasSubstr("makes a step of 40000 micro-batches"),
                    HasSubstr("lower gradient_accumulation_steps to 1"), Not(HasSubstr("raise"))));
  EXPECT_THAT(problem(R"({"train_batch_size": 1000000000, "train_micro_batch_size_per_gpu": 1})"),
              AllOf(HasSubstr("train_batch_size makes a step of 1000000000 micro-batches"),
                    HasSubstr("raise train_micro_batch_size_per_gpu, or lower train_batch_size")));
}

TEST(TrainConfigSettings, RefusesACycleWhoseLowestRateIsAboveItsHighest) {
  EXPECT_THAT(problem(R"({"scheduler": {"type": "OneCycle",
      "params": {"cycle_min_lr": [0.1, 2], "cycle_max_lr": 1}}})"),
              HasSubstr("scheduler.params.cycle_min_lr is 2, more than the 1 of"));
}

TEST(TrainConfigSettings, ReadsParameterGroups) {
  const TrainConfig config = parse(R"({"terrace": {"parameter_groups": [
      {"match": "wte*", "lr": 1e-5, "weight_decay": 0}, {"match": ["*.attn.*", "h.?.ln*"], "betas": [0.8, 0.9],
       "eps": 1e-6}]}})");
  ASSERT_EQ(config.parameter_groups.size(), 2u);
  EXPECT_THAT(config.parameter_groups[0].match, ElementsAre("wte*"));
  EXPECT_EQ(config.parameter_groups[0].lr, 1e-5);
  EXPECT_EQ(config.parameter_groups[0].weight_decay, 0.0);
  EXPECT_FALSE(config.parameter_groups[0].beta1.has_value());
  EXPECT_FALSE(config.parameter_groups[1].lr.has_value());
  EXPECT_EQ(config.parameter_groups[1].beta1, 0.8);
  EXPECT_EQ(config.parameter_groups[1].beta2, 0.9);
  EXPECT_EQ(config.parameter_groups[1].epsilon, 1e-6);
}

TEST(TrainConfigSettings, SaysWhatIsWrongWithAParameterGroup) {
  const auto with = [](std::string_view groups) {
    return problem(R"({"terrace": {"parameter_groups": )" + std::string(groups) + "}}");
  };
  EXPECT_EQ(
      with(R"([{"lr": 1}])"),
      "ds.json:1:35: terrace.parameter_groups[0] does not say which tensors it is for; give it \"match\"");
  EXPECT_THAT(with(R"([{"match": "a", "betas": [0.9]}])"), HasSubstr("[0].betas has 1 values; it needs two"));
  EXPECT_THAT(with(R"([{"match": "a"}, {"macth": "a"}])"),
              HasSubstr("unknown key \"macth\" in terrace.parameter_groups[1]; did you mean \"match\"?"));
  EXPECT_THAT(with(R"([3])"), HasSubstr("terrace.parameter_groups[0] must be an object, not 3"));
  EXPECT_THAT(with(R"({"match": "a"})"), HasSubstr("must be a list of objects, not an object"));
}

TEST(TrainConfigSettings, RefusesKeysOfAnotherScheduler) {
  EXPECT_EQ(problem(R"({"scheduler": {"type": "WarmupLR", "params": {"cycle_min_lr": 0}}})"),
            "ds.json:1:47: scheduler.params.cycle_min_lr is not a key of WarmupLR; it belongs to OneCycle");
  EXPECT_THAT(problem(R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_max_lr": 1}}})"),
              HasSubstr("belongs to WarmupLR"));
  EXPECT_EQ(problem(R"({"scheduler": {"type": "LRRangeTest", "params": {"last_batch_iteration": -1}}})"),
            "no problem");
  EXPECT_THAT(parse(R"({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 9}}})").warnings,
              ElementsAre(HasSubstr("scheduler.params (WarmupLR does not decay): total_num_steps")));
}

TEST(TrainConfigSettings, NeedsTheRatesOfACycle) {
  EXPECT_EQ(problem(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0}}})"),
            "ds.json:1:16: OneCycle needs scheduler.params.cycle_max_lr");
  EXPECT_THAT(
      parse(R"({"optimizer": {"params": {"betas": [0.9, 0.95], "lr": 5}}, "scheduler": {"type": "OneCycle",
      "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}}})")
          .warnings,
      ElementsAre(HasSubstr("optimizer.params.betas (ds.json:1:27) has no effect: OneCycle sets both"),
                  HasSubstr("optimizer.params.lr (ds.json:1:49) has no effect: "
                            "scheduler.params.cycle_max_lr (ds.json:2:39) sets the learning rate")));
}

TEST(TrainConfigSettings, CountsTheRatesOfAList) {
  EXPECT_THAT(problem(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [1, 2, 3]}}})"),
              HasSubstr("warmup_max_lr has 3 values; it needs one, or 2: weights that decay, weights that do "
                        "not"));
  EXPECT_EQ(problem(R"({"terrace": {"parameter_groups": [{"match": "a"}]},
                        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [1, 2, 3]}}})"),
            "no problem");
  EXPECT_THAT(problem(R"({"terrace": {"parameter_groups": [{"match": "a"}]},
                          "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [1, 2]}}})"),
              HasSubstr("has 2 values; it needs one, or 3: each of terrace.parameter_groups, other weights"));
}

TEST(TrainConfigSettings, SaysThatAGroupsOwnRateIsIdle) {
  EXPECT_THAT(parse(R"({"terrace": {"parameter_groups": [{"match": "a", "lr": 2}]},
                        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.001}}})")
                  .warnings,
              ElementsAre("terrace.parameter_groups[0].lr (ds.json:1:50) has no effect: "
                          "scheduler.params.warmup_max_lr (ds.json:2:70) sets the learning rate"));
}

TEST(TrainConfigSettings, TakesEveryPolicyAndEngineByItsName) {
  EXPECT_EQ(parse(R"({"terrace": {"policy": "gemini"}})").terrace.policy, PolicyKind::gemini);
  EXPECT_EQ(parse(R"({"terrace": {"policy": "patrickstar"}})").terrace.policy, PolicyKind::patrickstar);
  EXPECT_EQ(parse(R"({"terrace": {"engine": "libaio"}})").terrace.engine, io::EngineKind::libaio);
}

// These rules are terrace sim's, to compare with.
TEST(TrainConfigSettings, AnswersAPolicyThatKnowsNoScheduleWithTheOneToSet) {
  for (const char* policy : {"lru", "fifo", "mru"})
    EXPECT_THAT(problem(std::string(R"({"terrace": {"policy": ")") + policy + "\"}}"),
                AllOf(HasSubstr("opt, gemini, patrickstar"), HasSubstr("set \"opt\" instead")));
}

TEST(TrainConfigSettings, KeepsWarningsWithinAHundredColumns) {
  std::string keys;
  for (const char* key :
       {"use_multi_rank_bucket_allreduce", "contiguous_gradients", "reduce_scatter", "allgather_partitions",
        "round_robin_gradients", "pipeline_loading_checkpoint", "override_module_apply",
        "log_trace_cache_warnings", "enable_sanity_checks", "memory_efficient_linear"})
    keys += (keys.empty() ? "\"" : ", \"") + std::string(key) + "\": true";
  const TrainConfig config = parse("{\"zero_optimization\": {" + keys + "}, \"dump_state\": true}");
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_THAT(config.warnings[0], HasSubstr("11 known keys have no effect"));
  EXPECT_THAT(config.warnings[0], HasSubstr("\n  top level: dump_state"));
  std::istringstream lines("terrace: warning: " + config.warnings[0]);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

}  // namespace
}  // namespace terrace::train_config_settings_test
