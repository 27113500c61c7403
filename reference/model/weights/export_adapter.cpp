#include <terrace/reference/model/weights/export_adapter.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/text/json_writer.h>

namespace terrace {
namespace {

// PEFT wraps a model in two others, and its names say so.
constexpr const char* kPrefix = "base_model.model.";

std::string config_text(std::span<const AdapterSpec> adapters, const AdapterConfig& config) {
  const AdapterSpec& first = adapters.front();
  JsonWriter json;
  json.begin_object(JsonLayout::lines).members({{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"}});
  json.member("base_model_name_or_path", json_text_or_null(config.base_model));
  json.members({{"r", first.rank}, {"lora_alpha", config.alpha}, {"lora_dropout", json_fixed(0, 1)}});
  json.members({{"bias", "none"}, {"fan_in_fan_out", !first.outputs_first}, {"inference_mode", true}});
  json.member("use_rslora", false).begin_list("target_modules", JsonLayout::lines);
  // Whole names: a part of one could stand for modules that have no adapter.
  for (const AdapterSpec& adapter : adapters) json.value(adapter.module);
  return json.end().end().take() + "\n";
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
