// What the configuration says of several ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/offload/options/offload_options.h>
#include <terrace/runtime/config/train_config.h>

#include "runtime/config/config_test_support.h"

namespace terrace::ranks_config_test {
namespace {

using config_test::origin_of;
using config_test::parse;
using config_test::problem;
using config_test::value_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<ConfigOverride> ranks(const char* count) {
  return {{"terrace.ranks", count, "a test"}};
}

TEST(RanksConfig, OverlapsUnlessToldOtherwise) {
  EXPECT_TRUE(parse("{}", ranks("2")).ranks_overlap);
  EXPECT_TRUE(parse(R"({"zero_optimization": {"overlap_comm": "auto"}})", ranks("2")).ranks_overlap);
  const TrainConfig config = parse(R"({"zero_optimization": {"overlap_comm": false}})", ranks("2"));
  EXPECT_FALSE(config.ranks_overlap);
  EXPECT_THAT(config.warnings, IsEmpty());
  EXPECT_THAT(problem(R"({"zero_optimization": {"overlap_comm": "no"}})"),
              HasSubstr("zero_optimization.overlap_comm must be true or false, not \"no\""));
}

TEST(RanksConfig, SaysWhatHasNoEffectInOneRank) {
  const TrainConfig config = parse(R"({"zero_optimization": {"overlap_comm": false, "mics_shard_size": 8},
    "communication_data_type": "fp16", "comms_logger": {"enabled": true},
    "terrace": {"communicator": "mpi", "nvme_share": "own", "rank_timeout_seconds": 5,
                "rank_exchange": "pulled",
                "compare_ranks_every_steps": 1}})");
  ASSERT_EQ(config.warnings.size(), 1u);
  for (const char* const key :
       {"overlap_comm", "mics_shard_size", "communication_data_type", "enabled", "communicator", "nvme_share",
        "rank_timeout_seconds", "rank_exchange", "compare_ranks_every_steps", "there is one rank"})
    EXPECT_THAT(config.warnings[0], HasSubstr(key));
}

// What holds every gradient changes none.
TEST(RanksConfig, RefusesTypesThatWouldLoseDigitsOfGradients) {
  const auto with = [](const char* precision, const char* type) {
    return fmt::format(R"({{"{}": {{"enabled": true}}, "communication_data_type": "{}"}})", precision, type);
  };
  for (const char* const precision : {"bf16", "fp16"}) {
    for (const char* const type : {"fp32", "none", precision})
      EXPECT_EQ(problem(with(precision, type), ranks("2")), "no problem") << precision << " " << type;
  }
  EXPECT_EQ(
      problem(with("bf16", "fp16"), ranks("2")),
      "ds.json:1:29: communication_data_type is fp16, but gradients are bf16, and would lose digits: they "
      "travel as they are and are summed in fp32; set it to bf16 or fp32, or leave it out");
  EXPECT_THAT(problem(with("fp16", "bf16"), ranks("2")), HasSubstr("gradients are fp16"));
  for (const char* const type : {"fp16", "bf16"})
    EXPECT_THAT(problem(fmt::format(R"({{"communication_data_type": "{}"}})", type), ranks("2")),
                HasSubstr("gradients are fp32, and would lose digits"));
  EXPECT_EQ(problem(with("bf16", "fp16")), "no problem");  // nothing travels
  EXPECT_THAT(problem(R"({"communication_data_type": "int8"})"),
              HasSubstr("must be one of fp16, bf16, fp32"));
}

TEST(RanksConfig, RoundsWhatTheKeysOfZeroPlusPlusSay) {
  const TrainConfig exact = parse("{}");
  EXPECT_EQ(exact.parameter_bits, 0u);
  EXPECT_EQ(exact.batch.gradient_bits, 0u);
  const auto with = [](const char* zero, const char* more = "") {
    return fmt::format(R"({{"bf16": {{"enabled": true}}, "zero_optimization": {{{}}}{}}})", zero, more);
  };
  EXPECT_EQ(parse(with(R"("zero_quantized_weights": true)")).parameter_bits, 8u);
  EXPECT_EQ(parse(with(R"("zero_quantized_gradients": true)")).batch.gradient_bits, 8u);
  const TrainConfig four =
      parse(with(R"("zero_quantized_gradients": true)", R"(, "terrace": {"quantized_gradient_bits": 4})"));
  EXPECT_EQ(four.batch.gradient_bits, 4u);
  EXPECT_EQ(four.batch.rounds().gradient_bits, 4u);
  EXPECT_THAT(four.warnings, IsEmpty());
  const TrainConfig idle = parse(with("", R"(, "terrace": {"quantized_gradient_bits": 4})"));
  EXPECT_EQ(idle.batch.gradient_bits, 0u);
  EXPECT_THAT(idle.warnings, ElementsAre(HasSubstr("quantized_gradient_bits")));
}

// They are the masters, or halves of them.
TEST(RanksConfig, RefusesToRoundParametersThatHaveToBeExact) {
  EXPECT_THAT(problem(R"({"zero_optimization": {"zero_quantized_weights": true}})"),
              HasSubstr("zero_quantized_weights is true, but parameters are fp32"));
  EXPECT_THAT(problem(R"({"bf16": {"enabled": true}, "zero_optimization": {"zero_quantized_weights": true},
                          "terrace": {"compact_state": true}})"),
              HasSubstr("zero_quantized_weights is true, but so is terrace.compact_state"));
  EXPECT_THAT(problem(R"({"terrace": {"quantized_gradient_bits": 6}})"), HasSubstr("must be 8 or 4, not 6"));
  EXPECT_THAT(problem(R"({"zero_optimization": {"zeropp_loco_param": {"err_beta": 0.8}}})"),
              HasSubstr("error feedback"));
}

TEST(RanksConfig, DividesRanksIntoSubGroups) {
  const auto with = [](int size) {
    return fmt::format(R"({{"zero_optimization": {{"mics_shard_size": {}}}}})", size);
  };
  const TrainConfig of_four = parse(with(4), ranks("8"));
  EXPECT_EQ(of_four.sub_group_ranks, 4u);
  EXPECT_TRUE(of_four.keeps_gathers_first);
  for (const int size : {-1, 8}) {
    EXPECT_EQ(parse(with(size), ranks("8")).sub_group_ranks, 0u) << size;
    EXPECT_FALSE(parse(with(size), ranks("8")).keeps_gathers_first) << size;
  }
  // The same file serves the ranks that are left after a death.
  for (const int size : {3, 16}) {
    EXPECT_EQ(parse(with(size), ranks("8")).sub_group_ranks, 0u) << size;
    const std::vector<std::string> warnings = parse(with(size), ranks("8")).warnings;
    ASSERT_EQ(warnings.size(), 1u) << size;
    EXPECT_THAT(warnings[0], HasSubstr(fmt::format("8 ranks cannot be divided into groups of {}", size)));
  }
}

// It would be another training, with one rank as with several.
TEST(RanksConfig, RefusesEveryDegreeOfParallelismAboveOne) {
  const char* const divided[] = {R"({"tensor_parallel": {"autotp_size": 2}})",
                                 R"({"tensor_parallel": {"tp": {"tp_size": 4}}})",
                                 R"({"pipeline": {"stages": "2"}})",
                                 R"({"expert_parallel": {"enabled": true, "autoep_size": 8}})",
                                 R"({"sequence_parallel_size": 2})",
                                 R"({"tensor_parallel": {"tensor_parallel_size": 2}})",
                                 R"({"expert_parallel": {"expert_parallel_size": 2}})",
                                 R"({"expert_parallel": {"size": 2}})",
                                 R"({"tensor_parallel": 2})"};
  const char* const whole[] = {
      R"({"tensor_parallel": {"autotp_size": 0, "tp": {"tp_size": 1, "tp_grain_size": 64}}})",
      R"({"pipeline": {"stages": "auto", "partition": "best", "seed_layers": false}})",
      R"({"expert_parallel": {"enabled": false, "autoep_size": 1}})", R"({"tensor_parallel": {}})",
      R"({"sequence_parallel_size": 1})"};
  for (const char* const count : {"1", "2"}) {
    for (const char* const text : divided)
      EXPECT_THAT(problem(text, ranks(count)), HasSubstr("is divided among ranks")) << text;
    for (const char* const text : whole) EXPECT_EQ(problem(text, ranks(count)), "no problem") << text;
  }
  EXPECT_EQ(
      problem(divided[1]),
      "ds.json:1:29: tensor_parallel.tp_size cannot be 4: No model is divided among ranks: every degree has "
      "to be 1 or 0, and nothing else here has an effect.");
}

// The ranks are as many as have been started, whatever a file for planning says.
TEST(RanksConfig, SaysWhereANumberOfRanksHasNoEffect) {
  const auto warnings = [](std::string_view text) {
    const std::vector<ConfigOverride> started = {{"terrace.ranks", "2", "Open MPI", true}};
    return parse_train_config(text, "ds.json", started).warnings;
  };
  EXPECT_THAT(warnings(R"({"terrace": {"ranks": 7}})"),
              ElementsAre(HasSubstr("terrace (it is 2 by Open MPI, not 7): ranks")));
  EXPECT_THAT(warnings(R"({"terrace": {"ranks": 2}})"), IsEmpty());
  EXPECT_THAT(warnings("{}"), IsEmpty());
}

TEST(RanksConfig, TakesTheMicroBatchesOfAStep) {
  for (const char* const count : {"1", "2", "3"}) {
    const TrainConfig config =
        parse(R"({"train_micro_batch_size_per_gpu": 2, "terrace": {"micro_batches": 6}})", ranks(count));
    EXPECT_EQ(config.batch.micro_batches, 6u);
    EXPECT_EQ(config.batch.train_batch_size(), 12u);
    EXPECT_EQ(value_of(config, "gradient_accumulation_steps"), std::to_string(6 / std::stoi(count)));
    EXPECT_EQ(origin_of(config, "gradient_accumulation_steps"), "from terrace.micro_batches");
  }
  // N need not divide M.
  EXPECT_EQ(
      value_of(parse(R"({"terrace": {"micro_batches": 6}})", ranks("4")), "gradient_accumulation_steps"),
      "2");
  // What follows from the other keys is shown.
  EXPECT_EQ(value_of(parse(R"({"gradient_accumulation_steps": 3})", ranks("2")), "terrace.micro_batches"),
            "6");
  EXPECT_EQ(parse(R"({"train_batch_size": 12, "terrace": {"micro_batches": 6}})").batch.micro_batch_size, 2u);
  EXPECT_EQ(problem(R"({"gradient_accumulation_steps": 3, "terrace": {"micro_batches": 6}})", ranks("2")),
            "no problem");
  EXPECT_THAT(problem(R"({"terrace": {"micro_batches": 0}})"),
              HasSubstr("terrace.micro_batches must be a whole number from 1 to 16384, not 0"));
}

TEST(RanksConfig, NamesBothKeysThatSayOtherNumbersOfMicroBatches) {
  EXPECT_EQ(problem(R"({"gradient_accumulation_steps": 4, "terrace": {"micro_batches": 6}})", ranks("2")),
            "ds.json:1:48: terrace.micro_batches is 6, but gradient_accumulation_steps (ds.json:1:2) is 4 on "
            "each of "
            "2 ranks; leave one of the two out");
  EXPECT_THAT(
      problem(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                          "terrace": {"micro_batches": 6}})"),
      AllOf(HasSubstr("terrace.micro_batches is 6, but train_batch_size (ds.json:1:2) is 8 in micro-batches "
                      "of 2 (train_micro_batch_size_per_gpu")));
  EXPECT_THAT(problem(R"({"train_batch_size": 8, "terrace": {"micro_batches": 6}})"),
              HasSubstr("train_batch_size (ds.json:1:2) is 8, which is not a multiple of it"));
}

TEST(RanksConfig, TakesHowRanksMeetAndShareDrives) {
  const auto own = [](const char* text) { return parse(text, ranks("2")).terrace; };
  EXPECT_EQ(own("{}").communicator, CommunicatorChoice::automatic);
  EXPECT_EQ(own(R"({"terrace": {"communicator": "host"}})").communicator, CommunicatorChoice::host);
  EXPECT_EQ(own(R"({"terrace": {"communicator": "mpi"}})").communicator, CommunicatorChoice::mpi);
  EXPECT_EQ(own(R"({"terrace": {"communicator": "nccl"}})").communicator, CommunicatorChoice::nccl);
  EXPECT_THAT(problem(R"({"terrace": {"communicator": "gloo"}})"),
              HasSubstr("must be one of auto, host, mpi, nccl"));
  EXPECT_EQ(own("{}").rank_timeout_seconds, 60u);
  EXPECT_EQ(own(R"({"terrace": {"rank_timeout_seconds": 5}})").rank_timeout_seconds, 5u);
  EXPECT_THAT(problem(R"({"terrace": {"rank_timeout_seconds": 0}})"), HasSubstr("a whole number from 1 to"));
  EXPECT_EQ(own("{}").stall_warning_seconds, 60u);
  EXPECT_EQ(own("{}").stall_abort_seconds, 0u);
  EXPECT_EQ(own(R"({"terrace": {"stall_warning_seconds": 0}})").stall_warning_seconds, 0u);
  EXPECT_EQ(own(R"({"terrace": {"stall_abort_seconds": 30}})").stall_abort_seconds, 30u);
  EXPECT_EQ(own("{}").rank_exchange, std::nullopt);
  EXPECT_EQ(own(R"({"terrace": {"rank_exchange": "auto"}})").rank_exchange, std::nullopt);
  EXPECT_EQ(own(R"({"terrace": {"rank_exchange": "pulled"}})").rank_exchange, RankExchange::pulled);
  EXPECT_EQ(own(R"({"terrace": {"rank_exchange": "symmetric"}})").rank_exchange, RankExchange::symmetric);
  EXPECT_EQ(own("{}").nvme_share, NvmeShare::automatic);
  EXPECT_EQ(own(R"({"terrace": {"nvme_share": "all"}})").nvme_share, NvmeShare::all);
  EXPECT_EQ(own(R"({"terrace": {"nvme_share": "own"}})").nvme_share, NvmeShare::own);
  EXPECT_THAT(problem(R"({"terrace": {"nvme_share": "each"}})"), HasSubstr("must be one of auto, all, own"));
}

TEST(RanksConfig, LetsRanksExchangeTogetherWhereNcclMovesWhatTheyGather) {
  const std::string nccl = R"({"terrace": {"communicator": "nccl")";
  const TrainConfig config = parse(nccl + "}}", ranks("2"));
  EXPECT_EQ(config.terrace.rank_exchange, RankExchange::symmetric);
  const auto found = std::ranges::find(config.resolved, "terrace.rank_exchange", &ResolvedValue::key);
  ASSERT_NE(found, config.resolved.end());
  EXPECT_EQ(found->value, R"("symmetric")");
  EXPECT_EQ(found->origin, "terrace.communicator is nccl");
  const std::string pulled = nccl + R"(, "rank_exchange": "pulled"}})";
  EXPECT_THAT(
      problem(pulled, ranks("2")),
      HasSubstr("terrace.rank_exchange is pulled, but terrace.communicator is nccl, which moves what all "
                "ranks ask for in one order; set it to symmetric or auto"));
  EXPECT_EQ(parse(pulled, ranks("1")).terrace.rank_exchange, RankExchange::pulled);
}

TEST(RanksConfig, ComparesRanksInEveryStepWhereItIsStrict) {
  const auto every = [](const char* text) {
    return parse(text, ranks("2")).terrace.compare_ranks_every_steps;
  };
  EXPECT_EQ(every("{}"), 0u);
  EXPECT_EQ(every(R"({"terrace": {"strict": true}})"), 1u);
  EXPECT_EQ(every(R"({"terrace": {"strict": true, "compare_ranks_every_steps": 0}})"), 0u);
  EXPECT_EQ(every(R"({"terrace": {"strict": true, "rank_exchange": "pulled"}})"), 0u);
  EXPECT_EQ(every(R"({"terrace": {"compare_ranks_every_steps": 10}})"), 10u);
  EXPECT_THAT(problem(R"({"terrace": {"compare_ranks_every_steps": true}})"), HasSubstr("a whole number"));
}

TEST(RanksConfig, LogsLanesWhereAskedTo) {
  EXPECT_FALSE(parse("{}", ranks("2")).logs_lanes);
  const TrainConfig config = parse(
      R"({"comms_logger": {"enabled": true, "verbose": true, "prof_ops": ["all_reduce"]}})", ranks("2"));
  EXPECT_TRUE(config.logs_lanes);
  EXPECT_THAT(config.warnings, ElementsAre(HasSubstr("verbose, prof_ops")));
  EXPECT_THAT(problem(R"({"comms_logger": {"enabled": 1}})"),
              HasSubstr("comms_logger.enabled must be true or false"));
}

}  // namespace
}  // namespace terrace::ranks_config_test
