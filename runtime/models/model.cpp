#include <terrace/runtime/models/model.h>

#include <fmt/format.h>

#include <terrace/runtime/models/gpt2.h>

namespace terrace {

uint64_t Model::parameter_count() const {
  uint64_t count = 0;
  for (const TensorSpec& tensor : tensors()) count += tensor.element_count();
  return count;
}

std::string Model::description() const {
  const ModelConfig& model = config();
  return fmt::format("{} {} layers x {}, {} heads, context {}, vocabulary {}, {}", name_of(model.family),
                     model.layers, model.width, model.heads, model.context, model.vocabulary,
                     name_of(options().type));
}

std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelOptions& options) {
  return std::make_unique<Gpt2>(config, options);
}

}  // namespace terrace
