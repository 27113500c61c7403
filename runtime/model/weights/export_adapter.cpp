#include <terrace/runtime/model/weights/export_adapter.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

// PEFT wraps a model in two others, and its names say so.
constexpr const char* kPrefix = "base_model.model.";

std::string config_text(std::span<const AdapterSpec> adapters, const AdapterConfig& config) {
  std::string modules;
  for (const AdapterSpec& adapter : adapters) {
    // Whole names: a part of one could stand for modules that have no adapter.
    modules += (modules.empty() ? "" : ",\n    ") + json_quoted(adapter.module);
  }
  const AdapterSpec& first = adapters.front();
  return fmt::format(R"({{
  "peft_type": "LORA",
  "task_type": "CAUSAL_LM",
  "base_model_name_or_path": {},
  "r": {},
  "lora_alpha": {},
  "lora_dropout": 0.0,
  "bias": "none",
  "fan_in_fan_out": {},
  "inference_mode": true,
  "use_rslora": false,
  "target_modules": [
    {}
  ]
}}
)",
                     config.base_model.empty() ? "null" : json_quoted(config.base_model), first.rank,
                     config.alpha, first.outputs_first ? "false" : "true", modules);
}

}  // namespace

AdapterMerge::AdapterMerge(std::span<const AdapterSpec> adapters, std::span<const TensorSpec> tensors,
                           ValueSource source)
    : adapters_(adapters), values_(tensors.size()) {
  for (size_t i = 0; i < adapters.size(); ++i) {
    for (const TensorId tensor : {adapters[i].a, adapters[i].b})
      values_[index_of(tensor)].resize(tensors[index_of(tensor)].element_count());
    of_weight_.resize(std::max(of_weight_.size(), adapters[i].weight + 1));
    of_weight_[adapters[i].weight].push_back(i);
  }
  source([&](TensorId tensor) { return !values_[index_of(tensor)].empty(); },
         [&](TensorId tensor, uint64_t first, std::span<const float> run) {
           std::copy(run.begin(), run.end(),
                     values_[index_of(tensor)].begin() + static_cast<std::ptrdiff_t>(first));
         });
}

void AdapterMerge::apply(size_t weight, uint64_t first_element, std::span<float> values) const {
  if (weight >= of_weight_.size()) return;
  for (const size_t i : of_weight_[weight]) {
    const AdapterSpec& adapter = adapters_[i];
    merge_adapter(adapter, values_[index_of(adapter.a)], values_[index_of(adapter.b)], first_element, values);
  }
}

ExportReport export_adapter(const std::filesystem::path& target, std::span<const AdapterSpec> adapters,
                            std::span<const TensorSpec> tensors, const AdapterConfig& config,
                            ExportOptions options, ValueSource source, Log& log) {
  TERRACE_ASSERT(!adapters.empty(), "there are no adapters to export");
  std::vector<WeightSpec> weights;
  for (const AdapterSpec& adapter : adapters) {
    weights.push_back({fmt::format("{}{}.lora_A.weight", kPrefix, adapter.module),
                       {adapter.rank, adapter.inputs},
                       {adapter.a}});
    weights.push_back({fmt::format("{}{}.lora_B.weight", kPrefix, adapter.module),
                       {adapter.outputs, adapter.rank},
                       {adapter.b}});
  }
  options.stem = "adapter_model";
  options.texts["adapter_config.json"] = config_text(adapters, config);
  return export_weights(target, weights, tensors, options, source, log);
}

}  // namespace terrace
