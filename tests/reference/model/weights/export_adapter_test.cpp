#include <terrace/reference/model/weights/export_adapter.h>

#include <terrace/reference/model/weights/weight_folder.h>
#include <terrace/runtime/config/json/json_document.h>

#include "reference/model/weights/weights_rig.h"
#include "reference/model/weights/weights_test_support.h"

namespace terrace::export_adapter_test {
namespace {

using namespace weights_tests;

// Two linear layers, one stored each way round, with adapters beside them; the weights are frozen.
std::vector<TensorSpec> model_tensors() {
  return {
      {"q.weight", {40, 130}, DataType::bf16, false, 0, 1}, {"q.a", {4, 130}, DataType::bf16, true, 0, 1},
      {"q.b", {40, 4}, DataType::bf16, true, 0, 1},         {"plain", {50, 100}, DataType::bf16, false, 0, 1},
      {"c.weight", {70, 90}, DataType::bf16, false, 0, 1},  {"c.a", {4, 70}, DataType::bf16, true, 0, 1},
      {"c.b", {90, 4}, DataType::bf16, true, 0, 1}};
}
std::vector<WeightSpec> model_weights() {
  return {{"plain", {50, 100}, {TensorId{3}}},
          {"model.q.weight", {40, 130}, {TensorId{0}}},
          {"model.c.weight", {70, 90}, {TensorId{4}}}};
}
std::vector<AdapterSpec> adapters() {
  return {{"model.q", 1, TensorId{1}, TensorId{2}, 130, 40, 4, 2.0f, true},
          {"model.c", 2, TensorId{5}, TensorId{6}, 70, 90, 4, 2.0f, false}};
}

class ExportAdapter : public ::testing::Test {
 protected:
  ExportAdapter() : rig_(model_tensors(), Placement::cpu) {
    rig_.offloader->state().initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
      for (uint64_t e = 0; e < values.size(); ++e) values[e] = exact_value(index_of(tensor), first + e);
    });
  }
  void give(FunctionRef<bool(TensorId)> wanted, ValueSink sink) {
    rig_.offloader->state().export_values(wanted, sink);
  }
  std::vector<float> read(const std::string& name) const {
    const WeightFolder folder(fs::is_directory(path_ / "") && fs::exists(path_ / "adapter_model.safetensors")
                                  ? path_ / "adapter_model.safetensors"
                                  : path_);
    const WeightFolder::Place place = folder.find(name);
    if (!place) throw std::runtime_error("no " + name);
    std::vector<float> values(place.tensor->element_count());
    place.file->read(*place.tensor, 0, values);
    return values;
  }

  ScratchFolder folder_;
  fs::path path_ = folder_ / "out";
  WeightsRig rig_;
};

TEST_F(ExportAdapter, MergedIntoTheirWeightsTheyAreAddedToNothingElse) {
  const std::vector<AdapterSpec> specs = adapters();
  const auto source = [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) { give(wanted, sink); };
  const AdapterMerge merge(specs, rig_.tensors, source);
  ExportOptions options;
  options.type = DataType::fp32;
  options.transform = [&](size_t weight, uint64_t first, std::span<float> values) {
    merge.apply(weight, first, values);
  };
  export_weights(path_, model_weights(), rig_.tensors, options, source, rig_.log);
  const std::vector<float> plain = read("plain");
  for (uint64_t e = 0; e < plain.size(); ++e) ASSERT_EQ(plain[e], exact_value(3, e));
  const std::vector<float> q = read("model.q.weight");
  const std::vector<float> c = read("model.c.weight");
  const auto delta = [](uint32_t a, uint32_t b, uint64_t inputs, uint64_t out, uint64_t in) {
    float sum = 0;
    for (uint64_t r = 0; r < 4; ++r) sum += exact_value(b, out * 4 + r) * exact_value(a, r * inputs + in);
    return 2.0f * sum;  // exact: all are multiples of 1/64 below 1
  };
  for (uint64_t out = 0; out < 40; ++out) {
    for (uint64_t in = 0; in < 130; ++in)
      ASSERT_EQ(q[out * 130 + in], exact_value(0, out * 130 + in) + delta(1, 2, 130, out, in));
  }
  for (uint64_t in = 0; in < 70; ++in) {
    for (uint64_t out = 0; out < 90; ++out)
      ASSERT_EQ(c[in * 90 + out], exact_value(4, in * 90 + out) + delta(5, 6, 70, out, in));
  }
}

TEST_F(ExportAdapter, AloneTheyAreTheFilesOfPeft) {
  const auto source = [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) { give(wanted, sink); };
  const ExportReport report = export_adapter(path_, adapters(), rig_.tensors, {8, "base"},
                                             {.type = DataType::fp32}, source, rig_.log);
  EXPECT_EQ(report.weight_count, 4u);
  const std::vector<float> a = read("base_model.model.model.q.lora_A.weight");
  ASSERT_EQ(a.size(), 520u);
  EXPECT_EQ(a[519], exact_value(1, 519));
  EXPECT_EQ(read("base_model.model.model.c.lora_B.weight")[5], exact_value(6, 5));
  const JsonNode config = parse_json(text_of(path_ / "adapter_config.json"), "adapter_config.json");
  std::map<std::string, std::string> members;
  for (const JsonMember& member : config.members) members[member.key] = json_text(member.value);
  EXPECT_EQ(members["peft_type"], "\"LORA\"");
  EXPECT_EQ(members["r"], "4");
  EXPECT_EQ(members["lora_alpha"], "8");
  EXPECT_EQ(members["base_model_name_or_path"], "\"base\"");
  EXPECT_EQ(members["target_modules"], "[\"model.q\", \"model.c\"]");
}

}  // namespace
}  // namespace terrace::export_adapter_test
