// A model as a folder; declared in export_weights.h and export_adapter.h.
#include <optional>

#include <terrace/base/error.h>
#include <terrace/reference/model/weights/export_adapter.h>
#include <terrace/reference/model/weights/export_weights.h>

namespace terrace {

ExportReport export_model(const std::filesystem::path& target, const Model& model,
                          std::span<const TensorSpec> tensors, ExportOptions options, ValueSource source,
                          Log& log) {
  const std::vector<AdapterSpec> adapters = model.adapters();
  std::optional<AdapterMerge> merge;
  if (!adapters.empty()) {
    merge.emplace(adapters, tensors, source);
    options.transform = [&](size_t weight, uint64_t first, std::span<float> values) {
      merge->apply(weight, first, values);
    };
  }
  options.texts["config.json"] = model_config_json(model.config(), options.type);
  const std::vector<WeightSpec> weights = model.weights();
  return export_weights(target, weights, tensors, options, source, log);
}

ExportReport export_model_adapter(const std::filesystem::path& target, const Model& model,
                                  const std::string& base_model, const ExportOptions& options,
                                  ValueSource source, Log& log) {
  const std::vector<AdapterSpec> adapters = model.adapters();
  if (adapters.empty()) {
    throw Error(ErrorKind::config,
                {"cannot export adapters to", target.string(), "the model was trained without them",
                 "export the whole model, or train with terrace.lora in the configuration"});
  }
  return export_adapter(target, adapters, model.tensors(), {model.options().lora->alpha, base_model}, options,
                        source, log);
}

}  // namespace terrace
