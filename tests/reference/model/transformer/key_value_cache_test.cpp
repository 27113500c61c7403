// With a cache of keys and values the logits are those of the whole sequence, bit for bit, however the
// sequence is cut.
#include <terrace/reference/model/transformer/key_value_cache.h>

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "model_test_support.h"

namespace terrace::testing::key_value_cache_test {
namespace {

constexpr uint32_t kBatch = 2;

// Long enough for two tiles of the host's attention.
TestModel model_of(ModelFamily family, DataType type = DataType::bf16) {
  TestModel config;
  config.family = family;
  config.layers = 2, config.heads = 4, config.width = 48, config.context = 320, config.vocabulary = 150;
  config.type = type;
  config.init_std = 0.15f;  // large enough for every part to matter
  config.table_part_elements = 1;
  if (family == ModelFamily::gpt2) return config;
  config.key_value_heads = 2, config.hidden = 72, config.head_size = 10;
  config.attention_bias = family == ModelFamily::qwen2;
  config.output_bias = config.mlp_bias = false;
  config.tied_embeddings = family == ModelFamily::qwen3;
  return config;
}

// A model with its weights, and sequences to go on with.
class Sequences {
 public:
  Sequences(const TestModel& config, const HostOps& ops, uint32_t length)
      : model_(config.make()),
        parameters_(parameters_of(*model_)),
        ops_(ops),
        tokens_(config, kBatch, length) {}

  const Model& model() const { return *model_; }
  StackArena& arena() { return work_.arena(); }
  const std::vector<RecordedUse>& uses() const { return parameters_.uses(); }

  // The logits after the tokens [first, end) of `batch` sequences.
  std::vector<float> logits(uint32_t first, uint32_t end, KeyValueCache* cache, uint32_t batch = kBatch) {
    std::vector<int32_t> tokens;
    for (uint32_t sample = 0; sample < batch; ++sample) {
      const auto begin = tokens_.inputs.begin() + sample * tokens_.sequence;
      tokens.insert(tokens.end(), begin + first, begin + end);
    }
    std::vector<float> logits(size_t{batch} * model_->config().vocabulary);
    model_->next_token_logits(ops_, parameters_, work_.arena(), {tokens, tokens, batch, end - first}, logits,
                              "next/", cache);
    return logits;
  }

  // Cuts the sequences at `ends`; whatever was written behind the first `kept` tokens is forgotten first.
  void expect_the_same(KeyValueCache& cache, uint32_t kept, const std::vector<uint32_t>& ends) {
    cache.hold(kept);
    for (const uint32_t end : ends) {
      const std::vector<float> found = logits(cache.tokens(), end, &cache), all = logits(0, end, nullptr);
      EXPECT_EQ(cache.tokens(), end);
      ASSERT_EQ(std::memcmp(found.data(), all.data(), all.size() * sizeof(float)), 0)
          << end << " tokens, " << kept << " kept";
    }
  }

 private:
  std::unique_ptr<Model> model_;
  InMemoryParameters parameters_;
  const HostOps& ops_;
  Tokens tokens_;
  WorkMemory work_{kWorkBytes};
};

using Case = std::tuple<ModelFamily, InstructionSet>;

class Cache : public ::testing::TestWithParam<Case> {
 protected:
  Workers workers_{2};
};

TEST_P(Cache, ChangesNoBitOfTheLogitsHoweverTheSequenceIsCut) {
  const auto [family, set] = GetParam();
  for (const DataType type : {DataType::fp32, DataType::bf16}) {
    for (const ProductType products : {ProductType::fp32, ProductType::bf16, ProductType::bf16_amx}) {
      SCOPED_TRACE(std::string(name_of(type)) + ", products in " + std::string(name_of(products)));
      const HostOps ops(workers_, set, products);
      Sequences run(model_of(family, type), ops, 300);
      KeyValueCache cache = run.model().make_cache(run.arena(), kBatch, 300);
      run.expect_the_same(cache, 0, {5, 6, 7, 8});
      run.expect_the_same(cache, 6, {7, 40, 41});
      run.expect_the_same(cache, 0, {190, 193, 255, 256, 257, 258, 300});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Cache, TakesFewerSequencesThanItHasRoomFor) {
  const auto [family, set] = GetParam();
  const HostOps ops(workers_, set);
  Sequences run(model_of(family), ops, 20);
  KeyValueCache cache = run.model().make_cache(run.arena(), kBatch, 20);
  run.logits(0, 9, &cache, 1);
  EXPECT_EQ(run.logits(9, 11, &cache, 1), run.logits(0, 11, nullptr, 1));
}

// A plan that has run all tokens at once and the last one alone has seen the most of both.
TEST_P(Cache, DryRunsMakeTheSameUsesAndNeedTheSameMemory) {
  const auto [family, set] = GetParam();
  const HostOps ops(workers_, set);
  Sequences run(model_of(family), ops, 64);
  KeyValueCache cache = run.model().make_cache(run.arena(), kBatch, 64);
  run.logits(0, 63, &cache);
  const std::vector<RecordedUse> first_uses = run.uses();
  run.logits(63, 64, &cache);

  const HostOps dry_ops(workers_, set, ProductType::fp32, true);
  RecordingAccess first, last;
  StackArena dry = StackArena::dry_run();
  KeyValueCache dry_cache = run.model().make_cache(dry, kBatch, 64);
  EXPECT_EQ(dry.used_bytes(), cache.bytes());
  EXPECT_EQ(cache.bytes(), sizeof(float) * 2 * 2 * kBatch * 64 * run.model().config().key_value_heads *
                               run.model().config().head_size);
  std::vector<float> logits(size_t{kBatch} * 150);
  const auto run_dry = [&](ParameterAccess& access, uint32_t count) {
    const std::span<const int32_t> nothing(static_cast<const int32_t*>(nullptr), kBatch * count);
    run.model().next_token_logits(dry_ops, access, dry, {nothing, nothing, kBatch, count}, logits, "next/",
                                  &dry_cache);
  };
  run_dry(first, 63);
  EXPECT_EQ(dry.peak_bytes(), run.arena().peak_bytes());
  run_dry(last, 1);
  EXPECT_EQ(dry_cache.tokens(), 64u);
  EXPECT_EQ(dry.peak_bytes(), run.arena().peak_bytes());
  EXPECT_EQ(first.uses(), first_uses);
  EXPECT_EQ(last.uses(), first.uses());
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(static_cast<int>(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(FamiliesAndSets, Cache,
                         ::testing::Combine(::testing::Values(ModelFamily::gpt2, ModelFamily::llama,
                                                              ModelFamily::qwen2, ModelFamily::qwen3),
                                            ::testing::ValuesIn(supported_instruction_sets().begin(),
                                                                supported_instruction_sets().end())),
                         case_name);

// The angles of the other kinds do not depend on how long the sequence is.
TEST(KeyValueCache, HoldsWhatKeepsItsKeysWhileTheSequenceGrows) {
  Workers workers(2);
  const HostOps ops(workers, best_instruction_set());
  for (const RopeScalingKind kind : {RopeScalingKind::none, RopeScalingKind::linear, RopeScalingKind::dynamic,
                                     RopeScalingKind::llama3, RopeScalingKind::yarn}) {
    TestModel config = model_of(ModelFamily::llama);
    config.rope.kind = kind;
    config.rope.factor = kind == RopeScalingKind::none ? 1.0 : 4.0;
    config.rope.original_context = 24;
    const bool is_dynamic = kind == RopeScalingKind::dynamic;
    Sequences run(config, ops, 40);
    EXPECT_EQ(run.model().cacheable_tokens(), is_dynamic ? 24u : 320u);
    const uint32_t end = is_dynamic ? 24 : 40;
    KeyValueCache cache = run.model().make_cache(run.arena(), kBatch, end);
    run.expect_the_same(cache, 0, {20, 23, end});
  }
}

// The last lease of a pass cannot be had.
class FailingAccess final : public ParameterAccess {
 public:
  explicit FailingAccess(InMemoryParameters parameters) : parameters_(std::move(parameters)) {}
  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    if (operation == "head.1/inference")
      throw Error(ErrorKind::io, {"cannot read", "a part of the head", "a test", ""});
    parameters_.begin_use(operation, tensors, kind);
  }
  void end_use() override { parameters_.end_use(); }
  const std::byte* parameter(TensorId tensor) const override { return parameters_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return parameters_.gradient(tensor); }

 private:
  InMemoryParameters parameters_;
};

TEST(KeyValueCache, HoldsWhatItHeldBeforeAPassThatFailed) {
  Workers workers(1);
  const HostOps ops(workers, best_instruction_set());
  const TestModel config = model_of(ModelFamily::gpt2);
  Sequences run(config, ops, 12);
  KeyValueCache cache = run.model().make_cache(run.arena(), kBatch, 12);
  run.logits(0, 8, &cache);
  std::vector<float> logits(size_t{kBatch} * 150);
  const std::vector<int32_t> others = {3, 5};
  FailingAccess parameters(parameters_of(run.model()));
  EXPECT_THROW(run.model().next_token_logits(ops, parameters, run.arena(), {others, others, kBatch, 1},
                                             logits, "", &cache),
               Error);
  EXPECT_EQ(cache.tokens(), 8u);
  EXPECT_EQ(run.logits(8, 10, &cache), run.logits(0, 10, nullptr));
}

}  // namespace
}  // namespace terrace::testing::key_value_cache_test
