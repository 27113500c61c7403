#include <terrace/runtime/model/transformer/model.h>

#include <fmt/format.h>

namespace terrace {

uint64_t Model::parameter_count() const {
  uint64_t count = 0;
  for (const TensorSpec& tensor : tensors()) count += tensor.element_count();
  return count;
}

std::string Model::description() const {
  const ModelConfig& model = config();
  const std::string heads = model.key_value_heads == model.heads
                                ? fmt::format("{} heads", model.heads)
                                : fmt::format("{} heads on {}", model.heads, model.key_value_heads);
  const std::string adapted = options().lora ? fmt::format(", LoRA of rank {} beside {} weights",
                                                           options().lora->rank, adapters().size())
                                             : "";
  return fmt::format("{} {} layers x {}, {}, context {}, vocabulary {}, {}{}", name_of(model.family),
                     model.layers, model.width, heads, model.context, model.vocabulary,
                     name_of(options().type), adapted);
}

}  // namespace terrace
