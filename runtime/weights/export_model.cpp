// A whole model as a folder; declared in export_weights.h.
#include <terrace/runtime/weights/export_weights.h>

namespace terrace {

ExportReport export_model(const std::filesystem::path& target, const Model& model, ExportOptions options,
                          ValueSource source, Log& log) {
  options.texts["config.json"] = model_config_json(model.config(), options.type);
  const std::vector<WeightSpec> weights = model.weights();
  return export_weights(target, weights, model.tensors(), options, source, log);
}

}  // namespace terrace
