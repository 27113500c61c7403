// What the configuration refuses, maps, and finds contradictory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/runtime/config/train_config.h>

#include "runtime/config/config_test_support.h"

namespace terrace::train_config_rules_test {
namespace {

using config_test::origin_of;
using config_test::parse;
using config_test::problem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TrainConfigRules, RefusesOptimizersAndSchedulersItDoesNotHaveWithOneLine) {
  EXPECT_EQ(problem(R"({"scheduler": {"params": {"eta_min": 0}, "type": "CosineAnnealingLR"}})"),
            "ds.json:1:42: scheduler.type must be one of linear, WarmupLR, WarmupDecayLR, WarmupCosineLR, "
            "OneCycle, LRRangeTest, not \"CosineAnnealingLR\"; set \"WarmupCosineLR\" instead");
  EXPECT_THAT(
      problem(R"({"optimizer": {"type": "AdmW", "params": {"betas": 1}}})"),
      EndsWith("optimizer.type must be one of AdamW, Adam, Adagrad, Lion, SGD, Muon, not \"AdmW\"; did you "
               "mean \"AdamW\"?"));
  EXPECT_THAT(problem(R"({"optimizer": {"type": "Lamb", "params": {"max_coeff": 1}}})"),
              Not(HasSubstr("max_coeff")));
  EXPECT_THAT(problem(R"({"scheduler": {"params": {"warmup_num_steps": 3}}})"),
              HasSubstr("scheduler.params.warmup_num_steps is given, but scheduler.type is not"));
}

TEST(TrainConfigRules, RefusesWhatWouldChangeNumbersOrIsNotThere) {
  EXPECT_THAT(problem(R"({"amp": {"enabled": true}})"), HasSubstr("use bf16 or fp16"));
  EXPECT_EQ(problem(R"({"fp16": {"enabled": false}, "amp": {"enabled": "auto", "opt_level": "auto"}})"),
            "no problem");
  EXPECT_THAT(problem(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})"),
              HasSubstr("always fp32"));
  EXPECT_THAT(problem(R"({"zero_optimization": {"zero_quantized_nontrainable_weights": true}})"),
              HasSubstr("no masters"));
  EXPECT_EQ(problem(R"({"zero_optimization": {"zero_quantized_weights": false}})"), "no problem");
  EXPECT_THAT(problem(R"({"optimizer": {"params": {"max_grad_norm": 1}}})"),
              HasSubstr("Set gradient_clipping"));
  EXPECT_THAT(problem(R"({"data_types": {"param_dtype": "bf16"}})"), HasSubstr("precision of parameters"));
  EXPECT_THAT(problem(R"({"elasticity": {"enabled": true}})"), HasSubstr("another batch size"));
  EXPECT_EQ(problem(R"({"elasticity": {"enabled": false, "max_train_batch_size": 2000}})"), "no problem");
  EXPECT_THAT(
      problem(
          R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}})"),
      HasSubstr("compression_training cannot be enabled: Compression"));
  EXPECT_THAT(problem(R"({"sparse_attention": {"mode": "fixed"}})"), HasSubstr("change the model"));
  EXPECT_THAT(problem(R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}})"), HasSubstr("ZenFlow"));
}

TEST(TrainConfigRules, DividesUpdatesByTheRatio) {
  const auto with = [](const std::string& device, const std::string& ratio) {
    return R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": ")" + device +
           R"(", "ratio": )" + ratio + "}}}";
  };
  EXPECT_EQ(parse(with("cpu", "0.3")).placement.processor_share, 0.3);
  EXPECT_EQ(parse(with("cpu", "1.0")).placement.processor_share, 1);
  EXPECT_EQ(parse("{}").placement.processor_share, 1);
  EXPECT_THAT(problem(with("cpu", "1.5")), HasSubstr("offload_optimizer.ratio"));
  EXPECT_THAT(problem(R"({"terrace": {"update": "next_forward"}, "zero_optimization":
                          {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}})"),
              AllOf(HasSubstr("terrace.update is next_forward, but"), HasSubstr("offload_optimizer.ratio")));
  EXPECT_TRUE(parse(with("none", "1.0")).warnings.empty());
  EXPECT_THAT(parse(with("none", "0.5")).warnings, ElementsAre(HasSubstr("updated there): ratio")));
}

TEST(TrainConfigRules, LeavesAnAutomaticRatioToWhatIsMeasured) {
  const auto with = [](const std::string& device, const std::string& own) {
    return parse(R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": ")" + device +
                 R"(", "ratio": "auto"}}, "terrace": {)" + own + "}}");
  };
  const auto shown = [](const TrainConfig& config) {
    return *std::ranges::find(config.resolved, "zero_optimization.offload_optimizer.ratio",
                              &ResolvedValue::key);
  };
  const TrainConfig config = with("cpu", R"("device": "auto")");
  EXPECT_TRUE(config.placement.measures_sides);
  EXPECT_EQ(config.placement.processor_share, 1);
  EXPECT_FALSE(config.placement.update_rates);
  EXPECT_EQ(shown(config).value, "\"auto\"");
  EXPECT_EQ(shown(config).origin, "auto (ds.json:1:75)");
  EXPECT_THAT(shown(config).note, HasSubstr("measured rates"));
  EXPECT_THAT(shown(with("cpu", "")).note, HasSubstr("the simulated device computes"));
  const TrainConfig next = with("cpu", R"("update": "next_forward", "device": "auto")");
  EXPECT_THAT(shown(next).note, HasSubstr("in the next forward, in which the device has no part"));
  EXPECT_FALSE(with("none", "").placement.measures_sides);
  EXPECT_FALSE(parse("{}").placement.measures_sides);
}

TEST(TrainConfigRules, MapsOldAndUnofficialSpellings) {
  EXPECT_EQ(parse(R"({"zero_optimization": {"prefetch_bucket_size": 0}})").max_prefetch_elements, 0u);
  EXPECT_EQ(parse(R"({"zero_optimization": true})").zero_stage, 1u);
  EXPECT_EQ(parse(R"({"zero_optimization": false})").zero_stage, 0u);
  EXPECT_EQ(parse(R"({"bfloat16": {"enabled": true}})").precision, DataType::bf16);
  EXPECT_EQ(
      parse(R"({"aio": {"num_threads": 3, "single_submit": "true", "use_gds": "false"}})").aio.thread_count,
      3u);
  const TrainConfig config = parse(
      R"({"zero_optimization": {"stage": 2, "cpu_offload": true, "cpu_offload_use_pin_memory": false}})");
  EXPECT_EQ(config.placement.states, Placement::cpu);
  EXPECT_FALSE(config.placement.pin_states);
  EXPECT_EQ(origin_of(config, "zero_optimization.offload_optimizer.device"),
            "mapped from zero_optimization.cpu_offload (ds.json:1:36)");
  EXPECT_EQ(parse(R"({"zero_optimization": {"stage": 3, "cpu_offload_param": true}})").placement.parameters,
            Placement::cpu);
  EXPECT_EQ(parse(R"({"zero_optimization": {"stage": 3, "cpu_offload": false}})").placement.states,
            Placement::none);
}

TEST(TrainConfigRules, NamesBothSpellingsWhenTheyDisagree) {
  EXPECT_EQ(
      problem(R"({"aio": {"thread_count": 2, "intra_op_parallelism": 4}})"),
      "ds.json:1:29: aio.intra_op_parallelism is 4, but aio.thread_count (ds.json:1:10) is 2, and both mean "
      "aio.intra_op_parallelism");
  EXPECT_EQ(problem(R"({"aio": {"queue_depth": 8}, "zero_optimization": {"aio": {"queue_depth": 16}}})"),
            "ds.json:1:59: zero_optimization.aio.queue_depth is 16, but aio.queue_depth (ds.json:1:10) is 8, "
            "and both mean "
            "aio.queue_depth");
  EXPECT_EQ(problem(R"({"aio": {"queue_depth": 8}, "zero_optimization": {"aio": {"queue_depth": 8}}})"),
            "no problem");
  EXPECT_THAT(problem(R"({"zero_optimization": {"stage": 3, "cpu_offload": true,
                          "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}})"),
              HasSubstr("both mean zero_optimization.offload_optimizer.device"));
}

TEST(TrainConfigRules, NamesBothKeysOfAContradiction) {
  EXPECT_EQ(problem(R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})"),
            "ds.json:1:54: zero_optimization.offload_param.device is \"cpu\", but zero_optimization.stage "
            "(ds.json:1:24) is "
            "2; it needs stage 3");
  EXPECT_THAT(problem(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"),
              HasSubstr("but zero_optimization.stage (default) is 0; it needs stage 1, 2 or 3"));
  EXPECT_THAT(
      problem(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})"),
      HasSubstr("offload_param.device is nvme, but zero_optimization.offload_param.nvme_path is not given"));
  EXPECT_EQ(problem(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
            "ds.json:1:11: fp16.enabled and bf16.enabled (ds.json:1:38) are both true: parameters have one "
            "precision, set one of them to false");
  EXPECT_THAT(
      problem(R"({"terrace": {"chunk_elements": 8192}, "zero_optimization": {"sub_group_size": 5000}})"),
      HasSubstr(
          "terrace.chunk_elements is 8192, more than zero_optimization.sub_group_size (ds.json:1:61), 5000"));
  EXPECT_THAT(problem(R"({"terrace": {"chunk_elements": 5000}})"), HasSubstr("not a multiple of 4096"));
  EXPECT_THAT(
      problem(R"({"terrace": {"prefetch_depth": 4}, "zero_optimization": {"prefetch_bucket_size": 0}})"),
      HasSubstr("but zero_optimization.prefetch_bucket_size (ds.json:1:58) is 0"));
}

TEST(TrainConfigRules, LetsTheDeviceReadFilesByItselfWhereNothingStandsAgainstIt) {
  const auto with = [](const std::string& gds, const std::string& own, const std::string& parameters) {
    return R"({"aio": {"use_gds": )" + gds + R"(}, "terrace": {)" + own +
           R"(}, "zero_optimization": {"stage": 3, "offload_param": )" + parameters + "}}";
  };
  const std::string nvme = R"({"device": "nvme", "nvme_path": "/x"})";
  const std::string on_gpu = R"("device": "cuda")";
  const std::string fits = on_gpu + R"(, "verify_checksums": false)";
  EXPECT_EQ(parse(with("true", fits, nvme)).aio.file_reads, FileReads::on);
  EXPECT_EQ(parse(with("\"auto\"", fits, nvme)).aio.file_reads, FileReads::automatic);
  EXPECT_EQ(parse(with("\"false\"", fits, nvme)).aio.file_reads, FileReads::off);
  EXPECT_EQ(problem(with("true", on_gpu, nvme)),
            "ds.json:1:10: aio.use_gds is true, but terrace.verify_checksums (default) is true: what the GPU "
            "reads by itself is not compared");
  EXPECT_EQ(problem(with("true", R"("verify_checksums": false)", nvme)),
            "ds.json:1:10: aio.use_gds is true, but terrace.device (default) is simulated: only a GPU reads "
            "files by itself");
  // Asked for where it can be, it goes through host memory, and it is said why.
  const TrainConfig compared = parse(with("\"auto\"", on_gpu + R"(, "verify_checksums": true)", nvme));
  EXPECT_EQ(compared.aio.file_reads, FileReads::off);
  EXPECT_THAT(compared.warnings,
              ElementsAre("aio.use_gds (ds.json:1:10) is auto, and parameters go through host memory: "
                          "terrace.verify_checksums (ds.json:1:60) is true: what the GPU reads by itself is "
                          "not compared"));
  const TrainConfig idle = parse(with("true", on_gpu, R"({"device": "cpu"})"));
  EXPECT_EQ(idle.aio.file_reads, FileReads::off);
  EXPECT_THAT(idle.warnings,
              ElementsAre(HasSubstr("aio (zero_optimization.offload_param.device is cpu): use_gds")));
}

TEST(TrainConfigRules, ListsWhatIsSaidOfCommitsWhereThereAreNone) {
  const std::string states_on = R"("zero_optimization": {"stage": 3, "offload_optimizer": )";
  const std::string nvme = R"({"device": "nvme", "nvme_path": "/x"}}})";
  const TrainConfig honoured =
      parse(R"({"terrace": {"durable": true, "commit_every_steps": 7, "commit_every_seconds": 0,
                            "retained_checkpoints": 2}, )" +
            states_on + nvme);
  EXPECT_THAT(honoured.warnings, ElementsAre());
  EXPECT_TRUE(honoured.terrace.durable);
  EXPECT_EQ(honoured.terrace.commit_every_steps, 7u);
  EXPECT_EQ(honoured.terrace.commit_every_seconds, 0u);
  EXPECT_EQ(honoured.terrace.retained_checkpoints, 2u);
  const std::string on_cpu = R"({"device": "cpu"}}})";
  EXPECT_THAT(
      parse(R"({"terrace": {"durable": true, "commit_every_steps": 7}, )" + states_on + on_cpu).warnings,
      ElementsAre(HasSubstr("terrace (optimizer states are not on nvme): durable, commit_every_steps")));
  EXPECT_TRUE(honoured.terrace.memory_pressure);
  EXPECT_THAT(parse(R"({"terrace": {"memory_pressure": true}, )" + states_on + on_cpu).warnings,
              ElementsAre(HasSubstr("terrace (optimizer states are not on nvme): memory_pressure")));
  EXPECT_THAT(parse(R"({"terrace": {"memory_pressure": false}, )" + states_on + nvme).warnings,
              ElementsAre());
  EXPECT_THAT(
      parse(R"({"terrace": {"durable": false, "retained_checkpoints": 7}, )" + states_on + nvme).warnings,
      ElementsAre(HasSubstr("terrace (terrace.durable is false): retained_checkpoints")));
  EXPECT_THAT(parse(R"({"terrace": {"durable": false}, )" + states_on + nvme).warnings, ElementsAre());
}

TEST(TrainConfigRules, SaysThatIoUringPollsNothing) {
  EXPECT_THAT(
      parse(R"({"terrace": {"engine": "io_uring", "io_uring_sqpoll": true, "io_uring_iopoll": true}})")
          .warnings,
      ElementsAre(HasSubstr("terrace: io_uring_sqpoll, io_uring_iopoll")));
}

TEST(TrainConfigRules, HonoursNvmeStatesInEveryStageAndSaysSo) {
  const TrainConfig config = parse(
      R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}})");
  EXPECT_EQ(config.placement.states, Placement::nvme);
  EXPECT_THAT(config.warnings,
              ElementsAre("zero_optimization.stage (ds.json:1:24) is 1: optimizer states go to nvme, where "
                          "DeepSpeed would use host memory"));
}

// A configuration with this as the nvme_path of states.
std::string with_path(const std::string& value) {
  return R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme",
"nvme_path": )" +
         value + "}}}";
}

TEST(TrainConfigRules, TakesOneFolderOrAListOfThem) {
  using Folders = std::vector<std::filesystem::path>;
  EXPECT_EQ(parse(with_path(R"("/a")")).placement.state_paths, (Folders{"/a"}));
  EXPECT_EQ(parse(with_path(R"(["/a", "b c"])")).placement.state_paths, (Folders{"/a", "b c"}));
  EXPECT_EQ(
      config_test::value_of(parse(with_path(R"(["/a"])")), "zero_optimization.offload_optimizer.nvme_path"),
      R"("/a")");
  EXPECT_EQ(config_test::value_of(parse(with_path(R"(["/a", "/b"])")),
                                  "zero_optimization.offload_optimizer.nvme_path"),
            R"(["/a", "/b"])");
  const auto flag = [](const std::string& value) {
    return parse(with_path(R"("/file")"),
                 {{"zero_optimization.offload_optimizer.nvme_path", value, "--nvme-path"}})
        .placement.state_paths;
  };
  EXPECT_EQ(flag(R"(["/a", "/b"])"), (Folders{"/a", "/b"}));
  EXPECT_EQ(flag("12"), (Folders{"12"}));
  EXPECT_EQ(flag("[not a list"), (Folders{"[not a list"}));
}

TEST(TrainConfigRules, RefusesAFolderThatIsNamedTwice) {
  const std::string key = "zero_optimization.offload_optimizer.nvme_path";
  EXPECT_EQ(problem(with_path(R"(["/a", "/b", "/a"])")),
            "ds.json:2:27: " + key + " names the folder \"/a\" twice");
  EXPECT_EQ(problem(with_path(R"(["/a/", "/b/../a"])")),
            "ds.json:2:22: " + key + " names the folder \"/b/../a\" twice");
  EXPECT_EQ(problem("{}", {{key, R"(["x", "./x"])", "--nvme-path"},
                           {"zero_optimization.offload_optimizer.device", "nvme", "--offload-optimizer"}}),
            "--nvme-path: " + key + " names the folder \"./x\" twice");
  // Parameters and states may share a folder.
  EXPECT_EQ(problem(R"({"zero_optimization": {"stage": 3,
      "offload_param": {"device": "nvme", "nvme_path": ["/a", "/b"]},
      "offload_optimizer": {"device": "nvme", "nvme_path": ["/b", "/c"]}}})"),
            "no problem");
}

TEST(TrainConfigRules, SaysWhatAFolderMayBe) {
  const std::string must_be =
      "zero_optimization.offload_optimizer.nvme_path must be a folder or a list of folders";
  EXPECT_EQ(problem(with_path("7")), "ds.json:2:14: " + must_be + ", not 7");
  EXPECT_EQ(problem(with_path("[]")), "ds.json:2:14: " + must_be + ", at least one, not []");
  EXPECT_EQ(problem(with_path(R"(["/a", ""])")), "ds.json:2:14: " + must_be + R"(, not ["/a", ""])");
  EXPECT_EQ(problem(with_path(R"([["/a"]])")), "ds.json:2:14: " + must_be + R"(, not [["/a"]])");
  EXPECT_THAT(problem(with_path(R"("")")), HasSubstr("nvme_path is not given"));
}

TEST(TrainConfigRules, SaysWhenAPathIsNotUsed) {
  const TrainConfig config = parse(R"({"zero_optimization": {"offload_param": {"nvme_path": "/x"}}})");
  EXPECT_TRUE(config.placement.parameter_paths.empty());
  EXPECT_THAT(config.warnings,
              ElementsAre(HasSubstr("  zero_optimization.offload_param (its device is none): nvme_path")));
}

// A "type" that is a text is no choice among optimizers.
TEST(TrainConfigRules, TakesATextWhereAnyTextIsMeant) {
  EXPECT_EQ(problem(R"({"checkpoint": {"writer": {"type": "FAST"}}})"), "no problem");
}

TEST(TrainConfigRules, NamesAllBatchKeysWhenTheyContradict) {
  EXPECT_EQ(problem("{\n  \"train_batch_size\": 48,\n  \"train_micro_batch_size_per_gpu\": 1,\n"
                    "  \"gradient_accumulation_steps\": 8\n}"),
            "ds.json:2:3: train_batch_size is 48, but train_micro_batch_size_per_gpu (ds.json:3:3) x "
            "gradient_accumulation_steps (ds.json:4:3) is 1 x 8 = 8 in one process, which is 48 on 6 ranks; "
            "gradient_accumulation_steps 48 keeps the batch");
  EXPECT_EQ(problem(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})"),
            "ds.json:1:2: train_batch_size is 10, which is not a multiple of train_micro_batch_size_per_gpu "
            "(ds.json:1:26), 4");
  EXPECT_THAT(problem(R"({"train_batch_size": 0})"), HasSubstr("a whole number of at least 1, not 0"));
}

TEST(TrainConfigRules, MicroBatchesGoLayerByLayerWhereThereAreSeveral) {
  EXPECT_FALSE(parse(R"({"gradient_accumulation_steps": 4})").batch.layer_major);
  const std::string by_layer = R"("microbatch_order": "layer")";
  const TrainConfig several = parse(R"({"gradient_accumulation_steps": 4, "terrace": {)" + by_layer + "}}");
  EXPECT_TRUE(several.batch.layer_major);
  EXPECT_THAT(several.warnings, ElementsAre());
  const TrainConfig one = parse(R"({"terrace": {)" + by_layer + "}}");
  EXPECT_FALSE(one.batch.layer_major);
  EXPECT_THAT(one.warnings,
              ElementsAre(HasSubstr("terrace (gradient_accumulation_steps is 1): microbatch_order")));
  const TrainConfig keeping =
      parse(R"({"gradient_accumulation_steps": 4, "terrace": {"checkpoint_activations": false, )" + by_layer +
            "}}");
  EXPECT_TRUE(keeping.activations.checkpoint);
  EXPECT_THAT(keeping.warnings,
              ElementsAre(HasSubstr("terrace (terrace.microbatch_order is layer: layers are computed again): "
                                    "checkpoint_activations")));
}

}  // namespace
}  // namespace terrace::train_config_rules_test
