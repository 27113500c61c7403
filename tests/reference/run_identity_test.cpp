#include <terrace/reference/run_identity.h>

#include <gtest/gtest.h>

#include <functional>

#include <terrace/base/error.h>

#include "support/expect_error.h"

namespace terrace::run_identity_test {
namespace {

using testing::expect_error;

CheckpointInfo mine() {
  CheckpointInfo info;
  info.seed = 42;
  info.position = {{"context", 8}, {"data_fingerprint", 1}, {"train_tokens", 400}};
  info.settings = {{"optimizer.type", "\"AdamW\""}};
  return info;
}

CheckpointInfo saved() {
  CheckpointInfo info = mine();
  info.position[kConsumedSamples] = 3;
  return info;
}

TEST(RunIdentity, IsThatOfASavedStateOfTheSameTraining) {
  require_same_training(saved(), "there", mine());
}

TEST(RunIdentity, IsAnotherWhereTheDataOrTheOptimizerAre) {
  struct Case {
    std::string reason;
    std::function<void(CheckpointInfo&)> change;
  };
  for (const auto& [reason, change] : std::vector<Case>{
           {"saved with seed 7, now 42", [](CheckpointInfo& info) { info.seed = 7; }},
           {"saved with samples of 9 tokens, now 8",
            [](CheckpointInfo& info) { info.position["context"] = 9; }},
           {"other ones", [](CheckpointInfo& info) { info.position["data_fingerprint"] = 2; }},
           {"saved with 399 tokens", [](CheckpointInfo& info) { info.position["train_tokens"] = 399; }},
           {"does not say its \"consumed_samples\"",
            [](CheckpointInfo& info) { info.position.erase(kConsumedSamples); }},
           {"saved with optimizer.type \"Lion\", now \"AdamW\"",
            [](CheckpointInfo& info) { info.settings["optimizer.type"] = "\"Lion\""; }}}) {
    CheckpointInfo other = saved();
    change(other);
    expect_error(ErrorKind::config, {reason, "there"},
                 [&] { require_same_training(other, "there", mine()); });
  }
}

TEST(RunIdentity, IsTheSameForOptimizersWithTheSameMoments) {
  CheckpointInfo adam = saved();
  adam.settings["optimizer.type"] = "\"Adam\"";
  require_same_training(adam, "there", mine());
  adam.settings.clear();  // of before there were others
  require_same_training(adam, "there", mine());
}

}  // namespace
}  // namespace terrace::run_identity_test
