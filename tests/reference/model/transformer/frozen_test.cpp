// Weights that are not trained.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model_test_support.h"

namespace terrace::testing::transformer_frozen_test {
namespace {

TestModel small() {
  TestModel config;
  config.layers = 4, config.heads = 4, config.width = 48, config.context = 32, config.vocabulary = 90;
  return config;
}

std::vector<std::string> backward_uses(const Result& result) {
  std::vector<std::string> keys;
  for (const RecordedUse& use : result.uses) {
    if (use.kind == UseKind::backward) keys.push_back(use.operation);
  }
  return keys;
}

bool contains(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

TEST(FrozenWeights, ChangeNoOtherGradient) {
  TestModel config = small();
  const Tokens tokens(config, 2, 30);
  const Result all = train(config, tokens);
  for (const std::vector<std::string>& frozen :
       std::vector<std::vector<std::string>>{{"*.bias"},
                                             {"*wte*"},
                                             {"*attn*"},
                                             {"*.h.1.*", "*ln_*"},
                                             {"transformer.w?e.weight", "*.h.0.*", "*.h.1.*", "*.h.2.*"}}) {
    config.frozen = frozen;
    const auto owner = config.make();
    const Result some = train(config, tokens);
    EXPECT_EQ(some.loss, all.loss);
    uint32_t frozen_count = 0;
    for (const WeightSpec& weight : owner->weights()) {
      const bool trainable = owner->tensors()[index_of(weight.parts[0])].trainable;
      frozen_count += trainable ? 0 : 1;
      const std::vector<std::byte> nothing(all.gradients.at(weight.name).size());
      EXPECT_EQ(some.gradients.at(weight.name), trainable ? all.gradients.at(weight.name) : nothing)
          << weight.name;
    }
    EXPECT_GT(frozen_count, 0u);
  }
}

TEST(FrozenWeights, EndTheBackwardPassAtTheLowestThatIsTrained) {
  TestModel config = small();
  config.frozen = {"*w?e*", "*.h.0.*", "*.h.1.*"};
  const Tokens tokens(config, 2, 30);
  std::vector<std::string> keys = backward_uses(train(config, tokens));
  EXPECT_TRUE(contains(keys, "mb0/h.2.attn.qkv/backward"));
  for (const std::string& key : keys) {
    EXPECT_EQ(key.find("h.0."), std::string::npos) << key;
    EXPECT_EQ(key.find("h.1."), std::string::npos) << key;
    EXPECT_EQ(key.find("embedding"), std::string::npos) << key;
  }
  config.frozen.push_back("*.h.2.ln_1*");
  config.frozen.push_back("*.h.2.attn*");
  keys = backward_uses(train(config, tokens));
  EXPECT_TRUE(contains(keys, "mb0/h.2.mlp.fc/backward"));
  EXPECT_FALSE(contains(keys, "mb0/h.2.attn.proj/backward"));
  config.frozen = {"*w?e*", "*.h.*"};
  keys = backward_uses(train(config, tokens));
  EXPECT_EQ(keys, (std::vector<std::string>{"mb0/head.0/backward", "mb0/head.norm/backward"}));
}

// Layers that no gradient passes keep nothing.
TEST(FrozenWeights, NeedLessMemoryWhenTheyAreAtTheBottom) {
  TestModel config = small();
  config.checkpoint_activations = false;
  const Tokens tokens(config, 2, 30);
  const Result all = train(config, tokens);
  config.frozen = {"*w?e*", "*.h.0.*", "*.h.1.*", "*.h.2.*"};
  EXPECT_LT(train(config, tokens).peak_bytes, all.peak_bytes);
}

TEST(FrozenWeights, AreRefusedWhenNoneHasThatNameOrNothingIsLeft) {
  TestModel config = small();
  config.frozen = {"*wte*", "model.layers.*"};
  EXPECT_THROW(config.make(), Error);
  config.frozen = {"*"};
  EXPECT_THROW(config.make(), Error);
}

}  // namespace
}  // namespace terrace::testing::transformer_frozen_test
