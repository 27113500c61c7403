#include <terrace/reference/model/weights/load_weights.h>

#include <cmath>

#include "reference/model/weights/weights_rig.h"
#include "reference/model/weights/weights_test_support.h"
#include "support/allocation_counter.h"

namespace terrace::load_weights_test {
namespace {

using namespace weights_tests;

// A model of a table in two parts, a weight, and a frozen one, as the files of GPT-2 call them.
std::vector<TensorSpec> model_tensors(DataType type) {
  return {{"table.0", {60, 100}, type, true, 0, 1},
          {"table.1", {41, 100}, type, true, 0, 1},
          {"weight", {70, 131}, type, true, 0, 1},
          {"frozen", {33, 250}, type, false, 0, 1},
          {"adapter", {10}, type, true, 0, 1}};
}
std::vector<WeightSpec> model_weights() {
  return {{"transformer.wte.weight", {101, 100}, {TensorId{0}, TensorId{1}}},
          {"transformer.h.0.attn.c_attn.weight", {70, 131}, {TensorId{2}}},
          {"transformer.h.0.ln_1.weight", {33, 250}, {TensorId{3}}}};
}
std::vector<TestTensor> file_tensors(DataType type, const std::string& prefix = "transformer.") {
  return {{prefix + "wte.weight", type, {101, 100}},
          {prefix + "h.0.attn.c_attn.weight", type, {70, 131}},
          {prefix + "h.0.ln_1.weight", type, {33, 250}}};
}

class LoadWeights : public ::testing::Test {
 protected:
  void refuses(const std::vector<TestTensor>& tensors, const std::vector<std::string>& fragments) const {
    write_safetensors(path_ / "model.safetensors", tensors);
    const WeightFolder folder(path_);
    expect_error(ErrorKind::config, fragments,
                 [&] { const WeightSource source(folder, model_weights(), model_tensors(DataType::fp32)); });
  }

  ScratchFolder folder_;
  fs::path path_ = folder_.path();
};

TEST_F(LoadWeights, PutsEveryElementInItsPlaceWhereverTensorsLive) {
  for (const DataType file_type : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    write_safetensors(path_ / "model.safetensors", file_tensors(file_type));
    const WeightFolder folder(path_);
    for (const Placement placement : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const DataType type : {DataType::fp32, DataType::bf16}) {
        WeightsRig rig(model_tensors(type), placement);
        const WeightSource source(folder, model_weights(), rig.tensors);
        EXPECT_FALSE(source.has(TensorId{4}));
        rig.offloader->state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
          if (source.has(tensor)) return source.read(tensor, first, values);
          std::fill(values.begin(), values.end(), 0.5f);
        });
        const std::vector<float> upper = rig.values(TensorId{0});
        const std::vector<float> lower = rig.values(TensorId{1});
        ASSERT_EQ(upper.size() + lower.size(), 10100u);
        for (uint64_t e = 0; e < 10100; ++e)
          ASSERT_EQ(e < 6000 ? upper[e] : lower[e - 6000], exact_value(0, e)) << e;
        for (const uint32_t t : {2u, 3u}) {
          const std::vector<float> values = rig.values(TensorId{t});
          ASSERT_EQ(values.size(), rig.tensors[t].element_count());
          for (uint64_t e = 0; e < values.size(); ++e) ASSERT_EQ(values[e], exact_value(t - 1, e)) << t;
        }
        EXPECT_EQ(rig.values(TensorId{4}), std::vector<float>(10, 0.5f));
      }
    }
  }
}

TEST_F(LoadWeights, TakesNamesWithoutTheirPrefix) {
  write_safetensors(path_ / "model.safetensors", file_tensors(DataType::fp32, ""));
  const WeightFolder folder(path_);
  const WeightSource source(folder, model_weights(), model_tensors(DataType::fp32));
  std::vector<float> values(7);
  source.read(TensorId{1}, 3, values);
  EXPECT_EQ(values[6], exact_value(0, 6009));
}

TEST_F(LoadWeights, PassesOverBuffersThatAreNoWeights) {
  std::vector<TestTensor> tensors = file_tensors(DataType::fp32);
  tensors.push_back({"transformer.h.0.attn.bias", DataType::fp32, {1, 1, 8, 8}});
  tensors.push_back({"transformer.h.0.attn.masked_bias", DataType::fp32, {}});
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DataType::fp32, {4}});
  write_safetensors(path_ / "model.safetensors", tensors);
  const WeightFolder folder(path_);
  EXPECT_NO_THROW(WeightSource(folder, model_weights(), model_tensors(DataType::fp32)));
}

TEST_F(LoadWeights, TakesATiedHeadThatEqualsTheTableAndNoOther) {
  std::vector<TestTensor> tensors = file_tensors(DataType::bf16);
  tensors.push_back({"lm_head.weight", DataType::fp32, {101, 100}});
  const auto value = [](uint64_t t, uint64_t e) { return exact_value(t == 3 ? 0 : t, e); };
  write_safetensors(path_ / "model.safetensors", tensors, value);
  {
    const WeightFolder folder(path_);
    EXPECT_NO_THROW(WeightSource(folder, model_weights(), model_tensors(DataType::fp32)));
  }
  write_safetensors(path_ / "model.safetensors", tensors, [&](uint64_t t, uint64_t e) {
    return t == 3 && e == 10099 ? value(t, e) + 1.0f : value(t, e);
  });
  const WeightFolder folder(path_);
  expect_error(ErrorKind::config, {"lm_head.weight", "transformer.wte.weight", "tie_word_embeddings"},
               [&] { WeightSource(folder, model_weights(), model_tensors(DataType::fp32)); });
}

TEST_F(LoadWeights, ListsWhatIsMissingWrongOrTooMuch) {
  std::vector<TestTensor> tensors = file_tensors(DataType::fp32);
  tensors[0].name = "strange";
  tensors[1].shape = {131, 70};
  refuses(tensors,
          {"1 missing: transformer.wte.weight",
           "1 of another shape: transformer.h.0.attn.c_attn.weight is [131, 70] and must be [70, 131]",
           "1 not of this model: \"strange\""});
  refuses({{"x", DataType::fp32, {1}}}, {"3 missing", "another kind of model"});
  tensors = file_tensors(DataType::fp32);
  tensors.push_back({"wte.weight", DataType::fp32, {101, 100}});  // with and without the prefix
  refuses(tensors, {"1 not of this model: \"wte.weight\""});
  tensors = file_tensors(DataType::fp32);
  for (int i = 0; i < 12; ++i) tensors.push_back({"extra" + std::to_string(10 + i), DataType::fp32, {1}});
  refuses(tensors, {"12 not of this model", "\"extra19\" and 2 more"});
}

TEST_F(LoadWeights, NamesWeightsOfATypeThatTerraceDoesNotRead) {
  std::string head =
      R"({"wte.weight":{"dtype":"F64","shape":[101,100],"data_offsets":[0,80800]},)"
      R"("h.0.attn.c_attn.weight":{"dtype":"U8","shape":[70,131],"data_offsets":[80800,89970]},)"
      R"("h.0.ln_1.weight":{"dtype":"I8","shape":[33,250],"data_offsets":[89970,98220]}})";
  write_text(path_ / "model.safetensors", file_of(head, 98220));
  const WeightFolder folder(path_);
  expect_error(ErrorKind::config, {"3 of a type", "wte.weight is F64", "h.0.ln_1.weight is I8"},
               [&] { WeightSource(folder, model_weights(), model_tensors(DataType::fp32)); });
}

TEST_F(LoadWeights, NamesTheElementThatTheModelCannotHold) {
  const auto reads = [&](float value, DataType type) {
    write_safetensors(path_ / "model.safetensors", file_tensors(DataType::fp32), [&](uint64_t t, uint64_t e) {
      return t == 0 && e == 6005 ? value : exact_value(t, e);
    });
    const WeightFolder folder(path_);
    const WeightSource source(folder, model_weights(), model_tensors(type));
    std::vector<float> values(10);
    source.read(TensorId{1}, 0, values);
  };
  const std::string where = "element 6005 of transformer.wte.weight";
  for (const DataType type : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    for (const float value : {INFINITY, -INFINITY, NAN})
      expect_error(ErrorKind::config, {where, "damaged"}, [&] { reads(value, type); });
  }
  expect_error(ErrorKind::config, {where, "more than fp16 holds", "bf16"},
               [&] { reads(-65520, DataType::fp16); });
  expect_error(ErrorKind::config, {where, "more than bf16 holds"}, [&] { reads(3.4e38f, DataType::bf16); });
  EXPECT_NO_THROW(reads(65519, DataType::fp16));
  EXPECT_NO_THROW(reads(-65520, DataType::bf16));
  EXPECT_NO_THROW(reads(3.4e38f, DataType::fp32));
}

// What loading takes does not grow with the tensors: twenty times the elements, the same memory.
TEST_F(LoadWeights, TakesTheSameMemoryForTensorsOfAnySize) {
  const auto taken = [&](uint64_t rows) {
    write_safetensors(path_ / "model.safetensors", {{"w", DataType::bf16, {rows, 1000}}});
    WeightsRig rig({{"w", {rows, 1000}, DataType::bf16, true, 0, 1}}, Placement::nvme, 16 * kTileElements);
    const uint64_t before = terrace::testing::allocated_bytes_of_this_thread();
    const WeightFolder folder(path_);
    const std::vector<WeightSpec> weights = {{"w", {rows, 1000}, {TensorId{0}}}};
    const WeightSource source(folder, weights, rig.tensors);
    rig.offloader->state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
      source.read(tensor, first, values);
    });
    uint64_t seen = 0;
    rig.offloader->state().export_values(
        [](TensorId) { return true; },
        [&](TensorId, uint64_t, std::span<const float> v) { seen += v.size(); });
    EXPECT_EQ(seen, rows * 1000);
    return terrace::testing::allocated_bytes_of_this_thread() - before;
  };
  const uint64_t small = taken(100);
  EXPECT_LT(small, 100'000u);
  EXPECT_LT(taken(2000), small + 10'000);
}

}  // namespace
}  // namespace terrace::load_weights_test
