#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <terrace/runtime/config/schema/config_file.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace::config_file_test {
namespace {

// The values in force, without the stage and its note: the file asks for the least that its placements need.
std::vector<std::string> values(const TrainConfig& config) {
  std::vector<std::string> lines;
  for (const ResolvedValue& line : config.resolved)
    if (line.key != "zero_optimization.stage") lines.push_back(line.key + " " + line.value);
  return lines;
}

TEST(ConfigFile, ResolvesToTheConfigurationThatItIsOf) {
  const char* const nvme = R"({"bf16": {"enabled": true}, "gradient_clipping": 1.0,
    "optimizer": {"type": "Lion", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    "train_batch_size": 12, "train_micro_batch_size_per_gpu": 3,
    "zero_optimization": {"stage": 3,
      "offload_param": {"device": "nvme", "nvme_path": "/a\"b"},
      "offload_optimizer": {"device": "nvme", "nvme_path": "/c"}},
    "aio": {"block_size": 1048576}, "terrace": {"host_memory": "4GiB", "seed": 7}})";
  for (const char* const given :
       {"{}", nvme, R"({"zero_optimization": {"stage": 2, "cpu_offload": true}})"}) {
    SCOPED_TRACE(given);
    const TrainConfig config = parse_train_config(given, "ds.json");
    const std::string file = config_file_json(config);
    const TrainConfig again = parse_train_config(file, "written.json");
    EXPECT_EQ(values(again), values(config)) << file;
    EXPECT_EQ(config_file_json(again), file);
  }
}

// A flag offloads in any stage, and a file only from some stage on.
TEST(ConfigFile, HasTheStageThatPlacementsOfFlagsNeed) {
  const std::vector<ConfigOverride> states = {
      {"zero_optimization.offload_optimizer.device", "cpu", "--offload-optimizer"}};
  EXPECT_EQ(parse_train_config(config_file_json(default_train_config(states)), "f").zero_stage, 2u);
  std::vector<ConfigOverride> both = states;
  both.push_back({"zero_optimization.offload_param.device", "cpu", "--offload-param"});
  const TrainConfig config = parse_train_config(config_file_json(default_train_config(both)), "f");
  EXPECT_EQ(config.zero_stage, 3u);
  EXPECT_EQ(config.placement.parameters, Placement::cpu);
  EXPECT_EQ(config.placement.states, Placement::cpu);
}

}  // namespace
}  // namespace terrace::config_file_test
