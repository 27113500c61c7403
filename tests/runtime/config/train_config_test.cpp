#include <terrace/runtime/config/train_config.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <terrace/base/error.h>

#include "runtime/config/config_test_support.h"

namespace terrace::train_config_test {
namespace {

using config_test::origin_of;
using config_test::parse;
using config_test::problem;
using config_test::value_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Folders = std::vector<std::filesystem::path>;

// The two files that most people start from: ZeRO-3 with everything in host memory, and ZeRO-Infinity
// on NVMe.
constexpr std::string_view kHostOffload = R"({
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1
    },
    "bf16": { "enabled": "auto" },
    "optimizer": {
        "type": "AdamW",
        "params": { "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto" }
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": { "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto" }
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": { "device": "cpu", "pin_memory": true },
        "offload_param": { "device": "cpu", "pin_memory": true },
        "overlap_comm": true,
        "contiguous_gradients": true,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": true
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": false
}
)";

constexpr std::string_view kNvmeOffload = R"({
  "bf16": { "enabled": "auto" }, // the same as the trainer
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {
      "device": "nvme",  /* cpu | nvme */
      "nvme_path": "/local_nvme",
      "pin_memory": true,
      "buffer_count": 4,
      "fast_init": false,
    },
    "offload_param": {
      "device": "nvme", // [cpu|nvme]
      "nvme_path": "/local_nvme",
      "pin_memory": true,
      "buffer_count": 5,
      "buffer_size": 1e8,
      "max_in_cpu": 1e9
    },
    "aio": {
      "block_size": 262144,
      "queue_depth": 32,
      "thread_count": 1,
      "single_submit": false,
      "overlap_events": true
    },
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_fp16_weights_on_model_save": true,
  },
  "gradient_clipping": 0.5,
  "_comment": {"any": "thing"},
})";

TEST(TrainConfig, TakesTheHostOffloadFileThatMostPeopleStartFrom) {
  const TrainConfig config = parse(kHostOffload);
  EXPECT_EQ(config.batch.micro_batch_size, 1u);
  EXPECT_EQ(config.batch.micro_batches, 1u);
  EXPECT_EQ(config.precision, DataType::bf16);
  EXPECT_EQ(config.zero_stage, 3u);
  EXPECT_EQ(config.placement.parameters, Placement::cpu);
  EXPECT_EQ(config.placement.states, Placement::cpu);
  EXPECT_TRUE(config.placement.pin_states);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.steps_per_print, 2000u);
  EXPECT_EQ(config.optimizer.learning_rate, 5e-5);  // what Hugging Face's trainer fills in
  EXPECT_EQ(config.schedule.kind, LrScheduleKind::warmup);
  EXPECT_THAT(config.schedule.maximum_lr, IsEmpty());  // each group's own
  EXPECT_THAT(config.schedule.base_lr, ElementsAre(5e-5));
  EXPECT_EQ(config.schedule.warmup_step_count, 1u);  // as good as none
  EXPECT_TRUE(config.gather_16bit_weights_on_save);
  EXPECT_FALSE(config.wall_clock_breakdown);
  EXPECT_EQ(config.max_chunk_elements, 999'997'440u);  // the multiple of 4096 below 1e9
  EXPECT_FALSE(config.max_prefetch_elements.has_value());
  EXPECT_EQ(origin_of(config, "bf16.enabled"), "auto (ds.json:10:15)");
  EXPECT_EQ(origin_of(config, "train_micro_batch_size_per_gpu"), "auto (ds.json:37:5)");
}

TEST(TrainConfig, TakesTheNvmeOffloadFileThatMostPeopleStartFrom) {
  const TrainConfig config = parse(kNvmeOffload);
  EXPECT_EQ(config.placement.parameters, Placement::nvme);
  EXPECT_EQ(config.placement.states, Placement::nvme);
  EXPECT_EQ(config.placement.parameter_paths, (Folders{"/local_nvme"}));
  EXPECT_EQ(config.placement.state_paths, (Folders{"/local_nvme"}));
  EXPECT_EQ(config.aio.block_bytes, 262144u);
  EXPECT_EQ(config.aio.queue_depth, 32u);
  EXPECT_EQ(config.aio.thread_count, 1u);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.schedule.kind, LrScheduleKind::linear);
  EXPECT_EQ(config.batch.train_batch_size(), 1u);
  EXPECT_EQ(origin_of(config, "train_micro_batch_size_per_gpu"), "default");
  EXPECT_EQ(origin_of(config, "aio.intra_op_parallelism"),
            "mapped from zero_optimization.aio.thread_count (ds.json:23:7)");
  EXPECT_EQ(origin_of(config, "zero_optimization.offload_param.device"), "ds.json:13:7");
}

TEST(TrainConfig, ListsKeysWithoutEffectInOneWarning) {
  const TrainConfig config = parse(kNvmeOffload);
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_EQ(
      config.warnings[0],
      "12 known keys have no effect here (--explain KEY says why):\n"
      "  zero_optimization.offload_optimizer: buffer_count, fast_init\n"
      "  zero_optimization.offload_param: buffer_count, buffer_size, max_in_cpu\n"
      "  zero_optimization.aio: single_submit, overlap_events\n"
      "  zero_optimization: contiguous_gradients, reduce_bucket_size, stage3_param_persistence_threshold,\n"
      "    stage3_max_live_parameters, stage3_max_reuse_distance");
  EXPECT_TRUE(config.gather_16bit_weights_on_save);
}

TEST(TrainConfig, HasDefaultsWithoutAFile) {
  const TrainConfig config = default_train_config();
  EXPECT_EQ(config.batch.train_batch_size(), 1u);
  EXPECT_EQ(config.precision, DataType::fp32);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.placement.parameters, Placement::none);
  EXPECT_EQ(config.terrace.policy, PolicyKind::opt);
  EXPECT_EQ(config.terrace.seed, 42u);
  EXPECT_FALSE(config.terrace.engine.has_value());
  EXPECT_FALSE(config.terrace.device_memory_bytes.has_value());
  EXPECT_THAT(config.warnings, IsEmpty());
  for (const ResolvedValue& value : config.resolved) {
    EXPECT_TRUE(value.origin == "default" || value.key == "train_batch_size") << value.key << value.origin;
  }
}

TEST(TrainConfig, InfersTheThirdOfTheBatchSizes) {
  const auto sizes = [](std::string_view text) {
    const TrainConfig config = parse(text);
    return std::vector<uint64_t>{config.batch.train_batch_size(), config.batch.micro_batch_size,
                                 config.batch.micro_batches};
  };
  EXPECT_THAT(sizes(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4})"),
              ElementsAre(32, 4, 8));
  EXPECT_THAT(sizes(R"({"train_batch_size": 32, "gradient_accumulation_steps": 4})"), ElementsAre(32, 8, 4));
  EXPECT_THAT(sizes(R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})"),
              ElementsAre(8, 4, 2));
  EXPECT_THAT(sizes(R"({"train_batch_size": 32})"), ElementsAre(32, 32, 1));
  EXPECT_THAT(sizes(R"({"train_micro_batch_size_per_gpu": 4})"), ElementsAre(4, 4, 1));
  EXPECT_THAT(sizes(R"({"gradient_accumulation_steps": 4})"), ElementsAre(4, 1, 4));
  EXPECT_THAT(sizes(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto"})"),
              ElementsAre(32, 32, 1));
  EXPECT_THAT(
      sizes(
          R"({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2})"),
      ElementsAre(6, 3, 2));
  const TrainConfig config = parse(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4})");
  EXPECT_EQ(origin_of(config, "gradient_accumulation_steps"),
            "from train_batch_size and train_micro_batch_size_per_gpu");
}

TEST(TrainConfig, PointsAtAMisspeltKeyAndSuggestsTheRightOne) {
  EXPECT_EQ(problem("{\n  \"zero_optimization\": {\n      \"stage3_max_live_paramters\": 1e9\n  }\n}"),
            "ds.json:3:7: unknown key \"stage3_max_live_paramters\" in zero_optimization; "
            "did you mean \"stage3_max_live_parameters\"?");
  EXPECT_EQ(
      problem(R"({"zero_optimisation": {"stage": 3}})"),
      "ds.json:1:2: unknown key \"zero_optimisation\" in the top level; did you mean \"zero_optimization\"?");
  EXPECT_EQ(problem(R"({"stage": 3})"),
            "ds.json:1:2: unknown key \"stage\" in the top level; it belongs to zero_optimization");
  EXPECT_EQ(problem(R"({"optimizer": {"lr": 1}})"),
            "ds.json:1:16: unknown key \"lr\" in optimizer; it belongs to optimizer.params or "
            "terrace.parameter_groups");
  EXPECT_EQ(problem(R"({"zero_optimization": {"bf16": {"enabled": true}}})"),
            "ds.json:1:24: unknown key \"bf16\" in zero_optimization; it belongs to the top level");
  EXPECT_EQ(problem(R"({"terrace": {"devcie_memory": 1}})"),
            "ds.json:1:14: unknown key \"devcie_memory\" in terrace; did you mean \"device_memory\"?");
  EXPECT_EQ(problem(R"({"zero_optimization": {"device_memroy": 1}})"),
            "ds.json:1:24: unknown key \"device_memroy\" in zero_optimization; did you mean "
            "\"device_memory\" in terrace?");
  EXPECT_EQ(problem(R"({"something_else_entirely": 1})"),
            "ds.json:1:2: unknown key \"something_else_entirely\" in the top level");
}

TEST(TrainConfig, FindsThePlaceOfAKeyBehindCommentsAndQuotes) {
  EXPECT_THAT(problem("{\"a\\\"b: \" /* \"x\": */ : // \"y\":\n 1}"),
              StartsWith("ds.json:1:2: unknown key \"a\\\"b: \""));
  EXPECT_THAT(problem("{ // \"stage\":\n \"seeed\" /* : \" */ : [{}]}"),
              StartsWith("ds.json:2:2: unknown key \"seeed\""));
  EXPECT_THAT(problem("\xEF\xBB\xBF{\"seeed\": 1}"), StartsWith("ds.json:1:2: "));
}

TEST(TrainConfig, ReportsAllProblemsOfAFileTogether) {
  const std::string text =
      problem("{\"optimizr\": 1,\n\"gradient_clipping\": \"yes\",\n\"amp\": {\"enabled\": true}}");
  EXPECT_EQ(text,
            "ds.json:1:2: unknown key \"optimizr\" in the top level; did you mean \"optimizer\"?\n"
            "ds.json:2:22: gradient_clipping must be a number of at least 0, not \"yes\"\n"
            "ds.json:3:9: amp.enabled cannot be true: Apex AMP is not supported; use bf16 or fp16. "
            "\"auto\" is false.");
}

TEST(TrainConfig, SaysWhatAValueMayBe) {
  EXPECT_EQ(problem(R"({"zero_optimization": {"stage": "three"}})"),
            "ds.json:1:33: zero_optimization.stage must be a whole number from 0 to 3, not \"three\"");
  EXPECT_EQ(problem(R"({"zero_optimization": {"stage": 4}})"),
            "ds.json:1:33: zero_optimization.stage must be a whole number from 0 to 3, not 4");
  EXPECT_THAT(problem(R"({"zero_optimization": {"offload_param": {"device": "disk"}}})"),
              HasSubstr("must be one of none, cpu, nvme, not \"disk\""));
  EXPECT_THAT(problem(R"({"zero_optimization": {"offload_param": {"device": "nvem"}}})"),
              HasSubstr("must be one of none, cpu, nvme, not \"nvem\"; did you mean \"nvme\"?"));
  EXPECT_THAT(problem(R"({"zero_optimization": {"offload_param": {"device": "gpu"}}})"),
              Not(HasSubstr("did you mean")));
  EXPECT_THAT(problem(R"({"zero_optimization": {"offload_param": "cpu"}})"),
              HasSubstr("must be an object, not \"cpu\""));
  EXPECT_THAT(problem(R"({"zero_optimization": {"overlap_comm": 1}})"),
              HasSubstr("must be true or false, not 1"));
  EXPECT_THAT(problem(R"({"gradient_accumulation_steps": 1.5})"),
              HasSubstr("a whole number of at least 1, not 1.5"));
  EXPECT_THAT(problem(R"({"gradient_clipping": -1})"), HasSubstr("must be a number of at least 0, not -1"));
  EXPECT_THAT(problem(R"({"optimizer": {"params": {"betas": 0.9}}})"),
              HasSubstr("must be a list of numbers"));
  EXPECT_THAT(problem(R"({"optimizer": {"params": {"betas": [0.9, 1]}}})"), HasSubstr("from 0 to below 1"));
  EXPECT_THAT(problem(R"({"optimizer": {"params": {"betas": [0.9]}}})"),
              HasSubstr("has 1 values; it needs two"));
  EXPECT_THAT(problem(R"({"terrace": {"device_memory": "lots"}})"), HasSubstr("such as \"256MiB\""));
  EXPECT_THAT(problem(R"({"terrace": {"device_memory": 0}})"), HasSubstr("of at least 1, not 0"));
  EXPECT_EQ(problem(R"({"zero_optimization": {"sub_group_size": 100}})"), "no problem");
  EXPECT_THAT(problem(R"({"aio": {"block_size": 5000}})"),
              HasSubstr("aio.block_size is 5000, which is not a multiple of 4096"));
  EXPECT_EQ(problem("[1]"), "ds.json:1:1: a configuration is an object: { \"key\": value, ... }");
}

TEST(TrainConfig, ReadsWholeNumbersHoweverTheyAreWritten) {
  EXPECT_EQ(parse(R"({"zero_optimization": {"sub_group_size": 0.8192e5}})").max_chunk_elements, 81920u);
  EXPECT_EQ(parse(R"({"zero_optimization": {"stage3_prefetch_bucket_size": 5e7}})").max_prefetch_elements,
            50'000'000u);
  EXPECT_EQ(parse(R"({"terrace": {"seed": 9007199254740993}})").terrace.seed, 9007199254740993u);
  EXPECT_EQ(parse(R"({"terrace": {"seed": 9223372036854775807}})").terrace.seed, 9223372036854775807u);
  EXPECT_EQ(problem(R"({"zero_optimization": {"stage3_model_persistence_threshold": 9223372036854775807}})"),
            "no problem");
  EXPECT_THAT(problem(R"({"terrace": {"seed": 1e30}})"),
              HasSubstr("must be a whole number of at least 0, not 1e30"));
}

TEST(TrainConfig, ReadsOptimizerAndScheduler) {
  const TrainConfig config = parse(R"({
    "optimizer": {"type": "adam", "params": {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.1,
                                             "bias_correction": false, "adam_w_mode": false, "torch_adam": true}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-6, "warmup_max_lr": [1e-3, 2e-3],
                  "warmup_num_steps": 10, "warmup_type": "linear", "total_num_steps": 100}}})");
  EXPECT_FALSE(config.optimizer.decoupled_weight_decay);
  EXPECT_EQ(config.optimizer.learning_rate, 3e-4);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.optimizer.epsilon, 1e-7);
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  EXPECT_FALSE(config.optimizer.bias_correction);
  EXPECT_EQ(config.schedule.kind, LrScheduleKind::warmup_decay);
  EXPECT_EQ(config.schedule.warmup_shape, WarmupShape::linear);
  EXPECT_EQ(config.schedule.warmup_step_count, 10u);
  EXPECT_EQ(config.schedule.total_step_count, 100u);
  EXPECT_THAT(config.schedule.minimum_lr, ElementsAre(1e-6));
  EXPECT_THAT(config.schedule.maximum_lr, ElementsAre(1e-3, 2e-3));
  EXPECT_THAT(
      config.warnings,
      ElementsAre(
          "optimizer.params.lr (ds.json:2:46) has no effect: scheduler.params.warmup_max_lr (ds.json:4:78) "
          "sets the learning rate",
          HasSubstr("  optimizer.params: torch_adam")));
  EXPECT_EQ(value_of(config, "scheduler.params.warmup_max_lr"), "[0.001, 0.002]");
}

TEST(TrainConfig, DecaysLikeAdamwUnlessToldOtherwise) {
  EXPECT_TRUE(parse(R"({"optimizer": {"type": "Adam"}})").optimizer.decoupled_weight_decay);
  EXPECT_THAT(problem(R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})"),
              HasSubstr("optimizer.params.adam_w_mode is false, but optimizer.type (ds.json:1:16) is AdamW"));
}

TEST(TrainConfig, TakesThePeakOfTheScheduleFromTheOptimizer) {
  const auto peak = [](std::string_view scheduler) {
    const LrScheduleOptions schedule =
        parse(R"({"optimizer": {"params": {"lr": 0.25}}, "scheduler": )" + std::string(scheduler) + "}")
            .schedule;
    return schedule.maximum_lr.empty() ? schedule.base_lr : schedule.maximum_lr;
  };
  EXPECT_THAT(peak("null"), ElementsAre(0.25));
  EXPECT_THAT(peak(R"({"type": "WarmupLR"})"), ElementsAre(0.25));
  EXPECT_THAT(peak(R"({"type": "WarmupDecayLR"})"), ElementsAre(0.001));
  EXPECT_THAT(peak(R"({"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto"}})"), ElementsAre(0.25));
  EXPECT_THAT(peak(R"({"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}})"), ElementsAre(0.5));
}

TEST(TrainConfig, ReadsTheKeysOfItsOwn) {
  const TrainConfig config = parse(R"({"terrace": {"device_memory": "256MiB", "host_memory": 1073741824,
      "chunk_elements": 8192, "policy": "gemini", "engine": "io_uring", "prefetch_depth": 3, "strict": true,
      "verify_checksums": false, "memory_pressure": false, "threads": 2, "bind_threads": false, "seed": 7}})");
  EXPECT_EQ(config.terrace.device_memory_bytes, 256u << 20);
  EXPECT_EQ(config.terrace.host_memory_bytes, 1u << 30);
  EXPECT_EQ(config.terrace.chunk_elements, 8192u);
  EXPECT_EQ(config.terrace.policy, PolicyKind::gemini);
  EXPECT_EQ(config.terrace.engine, io::EngineKind::io_uring);
  EXPECT_EQ(config.terrace.prefetch_uses, 3u);
  EXPECT_TRUE(config.terrace.strict);
  EXPECT_FALSE(config.terrace.verify_checksums);
  EXPECT_FALSE(config.terrace.memory_pressure);
  EXPECT_EQ(config.terrace.thread_count, 2u);
  EXPECT_FALSE(config.terrace.bind_threads);
  EXPECT_EQ(config.terrace.seed, 7u);
  EXPECT_FALSE(parse(R"({"terrace": {"engine": "auto"}})").terrace.engine.has_value());
}

TEST(TrainConfig, LetsFlagsTakeThePlaceOfTheFile) {
  const TrainConfig config =
      parse(R"({"terrace": {"device_memory": "1GiB"}, "optimizer": {"params": {"lr": 1}}})",
            {{"terrace.device_memory", "64MiB", "--device-memory"},
             {"optimizer.params.lr", "3e-4", "--lr"},
             {"optimizer.params.betas", "[0.5, 0.6]", "--betas"},
             {"bf16.enabled", "true", "--bf16"},
             {"aio.thread_count", "7", "--aio-threads"},
             {"zero_optimization.offload_param.device", "nvme", "--parameters"},
             {"zero_optimization.offload_param.nvme_path", "/a b", "--nvme-path"}});
  EXPECT_EQ(config.terrace.device_memory_bytes, 64u << 20);
  EXPECT_EQ(config.optimizer.learning_rate, 3e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.6);
  EXPECT_EQ(config.precision, DataType::bf16);
  EXPECT_EQ(config.placement.parameters, Placement::nvme);  // though the stage is 0: the flag says it all
  EXPECT_EQ(config.placement.parameter_paths, (Folders{"/a b"}));
  EXPECT_EQ(config.aio.thread_count, 7u);
  EXPECT_EQ(origin_of(config, "terrace.device_memory"), "--device-memory");
  EXPECT_EQ(origin_of(config, "optimizer.params.lr"), "--lr");
}

TEST(TrainConfig, ChecksFlagsLikeTheFile) {
  EXPECT_EQ(problem("{}", {{"terrace.device_memory", "big", "--device-memory"}}),
            "--device-memory: terrace.device_memory must be a number of bytes or a text such as \"256MiB\" "
            "of at least 1, "
            "not \"big\"");
  EXPECT_EQ(problem("{}", {{"gradient_clipping", "much", "--clip"}}),
            "--clip: gradient_clipping must be a number of at least 0, not \"much\"");
  EXPECT_EQ(problem("{}", {{"no.such", "1", "--set"}}), "--set: \"no.such\" is not a key that can be set");
  EXPECT_EQ(problem("{}", {{"terrace", "1", "--set"}}), "--set: \"terrace\" is not a key that can be set");
  EXPECT_THAT(
      problem(R"({"train_batch_size": 9})", {{"train_micro_batch_size_per_gpu", "4", "--micro-batch"}}),
      HasSubstr("train_micro_batch_size_per_gpu (--micro-batch), 4"));
}

TEST(TrainConfig, TakesNullForAnAbsentKey) {
  const TrainConfig config =
      parse(R"({"zero_optimization": {"stage": 3, "offload_param": null}, "train_batch_size": null})");
  EXPECT_EQ(config.placement.parameters, Placement::none);
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST(TrainConfig, ReadsAFileAndNamesItInOrigins) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "train_config_test";
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / "own.json";
  std::ofstream(path) << "{\"gradient_clipping\": 2}";
  EXPECT_EQ(load_train_config(path).gradient_clipping, 2.0);
  EXPECT_EQ(origin_of(load_train_config(path), "gradient_clipping"), path.string() + ":1:2");
  EXPECT_THROW(load_train_config(folder / "missing.json"), Error);
  EXPECT_THROW(load_train_config(folder), Error);
  try {
    load_train_config(folder / "missing.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.what(), HasSubstr("No such file or directory"));
  }
  std::filesystem::remove_all(folder);
}

TEST(TrainConfig, StopsReadingAnEndlessFile) {
  try {
    load_train_config("/dev/zero");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("larger than 1.00 MiB"));
  }
}

}  // namespace
}  // namespace terrace::train_config_test
