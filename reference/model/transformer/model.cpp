#include <terrace/reference/model/transformer/model.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>

namespace terrace {

uint32_t Model::cacheable_tokens() const {
  const ModelConfig& model = config();
  if (model.rope.kind != RopeScalingKind::dynamic) return model.context;
  return std::min(model.context, model.rope.original_context);
}

KeyValueCache Model::make_cache(StackArena& arena, uint32_t batch, uint32_t tokens) const {
  TERRACE_ASSERT(tokens <= cacheable_tokens(),
                 fmt::format("{} tokens of {} can be held in a cache", tokens, cacheable_tokens()));
  const ModelConfig& model = config();
  const uint64_t width = uint64_t{model.key_value_heads} * model.head_size;
  return KeyValueCache({model.layers, batch, tokens, width}, arena);
}

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
