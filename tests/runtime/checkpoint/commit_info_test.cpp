#include <terrace/runtime/checkpoint/commit_info.h>

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace terrace::commit_info_test {
namespace {

using testing::expect_error;

CheckpointInfo example() {
  CheckpointInfo info;
  info.step = 20;
  info.model = "gpt2 \"tiny\" \xC3\xA9";
  info.architecture = R"({"model_config": {"model_type": "gpt2"}})";
  info.tensor_hash = 0x0123456789abcdef;
  info.type = DataType::fp16;
  info.seed = UINT64_MAX;
  info.position = {{"consumed_samples", UINT64_MAX - 1}, {"context", 0}};
  info.loss_scaler = {{"scale_bits", UINT64_MAX}, {"skipped_steps", 3}};
  info.settings = {{"optimizer.params.lr", "0.001"}, {"steps", "100"}};
  info.chunk_elements = 8192;
  return info;
}

// Readers of other programs hold on to these bytes.
TEST(CommitInfo, HasTheTextOfTheFormat) {
  EXPECT_EQ(commit_info_text(example()), R"({
  "format": "terrace-epoch",
  "version": 1,
  "step": 20,
  "model": "gpt2 \"tiny\" é",
  "architecture": "{\"model_config\": {\"model_type\": \"gpt2\"}}",
  "parameter_type": "fp16",
  "tensor_hash": "0123456789abcdef",
  "seed": 18446744073709551615,
  "data_position": {"consumed_samples": 18446744073709551614, "context": 0},
  "loss_scaler": {"scale_bits": 18446744073709551615, "skipped_steps": 3},
  "settings": {"optimizer.params.lr": "0.001", "steps": "100"},
  "chunk_elements": 8192
}
)");
}

TEST(CommitInfo, ComesBackAsItWas) {
  for (const bool scaled : {true, false}) {
    CheckpointInfo info = example();
    if (!scaled) info.loss_scaler.clear();
    EXPECT_TRUE(is_commit_info(commit_info_text(info)));
    const CheckpointInfo found = parse_commit_info(commit_info_text(info), "m");
    EXPECT_EQ(found.chunk_elements, info.chunk_elements);
    EXPECT_EQ(found.step, info.step);
    EXPECT_EQ(found.model, info.model);
    EXPECT_EQ(found.architecture, info.architecture);
    EXPECT_EQ(found.tensor_hash, info.tensor_hash);
    EXPECT_EQ(found.type, info.type);
    EXPECT_EQ(found.seed, info.seed);
    EXPECT_EQ(found.position, info.position);
    EXPECT_EQ(found.loss_scaler, info.loss_scaler);
    EXPECT_EQ(found.settings, info.settings);
  }
}

std::string edited(const std::string& from, const std::string& to) {
  std::string text = commit_info_text(example());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(CommitInfo, OfAHostileWriterIsAnError) {
  struct Edit {
    std::string from, to, fragment;
  };
  const std::vector<Edit> edits = {
      {"\"step\": 20", "\"step\": -20", "\"step\" is not a whole number"},
      {"\"step\": 20", "\"stop\": 20", "\"step\" is missing"},
      {"\"step\": 20", "\"step\": 20, \"extra\": 1", "\"extra\" is not known"},
      {"\"step\": 20", "\"step\":  20", "not written the way"},
      {"\"step\": 20", "\"step\": " + std::string(100000, '['), "not JSON"},
      {"terrace-epoch", "terrace-checkpoint", "its format is not terrace-epoch"},
      {"\"version\": 1", "\"version\": 0", "there is no version 0"},
      {"8192", "0", "\"chunk_elements\" is no multiple of 4096"},
      {"8192", "8193", "\"chunk_elements\" is no multiple of 4096"},
      {"fp16", "fp8", "\"parameter_type\" is none of"},
      {"\"context\": 0", "\"context\": \"0\"", "\"context\" of data_position"},
      {"\"steps\": \"100\"", "\"steps\": 100", "\"steps\" of settings is not a text"},
      {"{\"scale_bits\": 18446744073709551615, \"skipped_steps\": 3}", "{}", "\"loss_scaler\" is empty"},
  };
  for (const Edit& edit : edits) {
    expect_error(ErrorKind::corrupt, {edit.fragment, "epoch"},
                 [&] { parse_commit_info(edited(edit.from, edit.to), "epoch"); });
  }
  expect_error(ErrorKind::corrupt, {"not JSON"}, [] { parse_commit_info("", "epoch"); });
  expect_error(ErrorKind::config, {"version 3", "versions up to 2"},
               [] { parse_commit_info(edited("\"version\": 1", "\"version\": 3"), "epoch"); });
}

}  // namespace
}  // namespace terrace::commit_info_test
