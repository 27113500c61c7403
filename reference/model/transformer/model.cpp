#include <terrace/reference/model/transformer/model.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

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

std::vector<uint64_t> Model::element_counts() const {
  std::vector<uint64_t> counts;
  for (const TensorSpec& tensor : tensors()) counts.push_back(tensor.element_count());
  for (const WeightSpec& weight : weights()) {
    if (weight.coded.is_coded()) counts[index_of(weight.parts.front())] = weight.coded.elements;
  }
  return counts;
}

uint64_t Model::parameter_count() const {
  const std::vector<uint64_t> counts = element_counts();
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

std::string Model::description() const {
  const ModelConfig& model = config();
  const std::string heads = model.key_value_heads == model.heads
                                ? fmt::format("{} heads", model.heads)
                                : fmt::format("{} heads on {}", model.heads, model.key_value_heads);
  const std::string adapted = options().lora ? fmt::format(", LoRA of rank {} beside {} weights",
                                                           options().lora->rank, adapters().size())
                                             : "";
  const std::string coded = options().quantize_base == WeightCode::none
                                ? ""
                                : fmt::format(", base in {}", name_of(options().quantize_base));
  return fmt::format("{} {} layers x {}, {}, context {}, vocabulary {}, {}{}{}", name_of(model.family),
                     model.layers, model.width, heads, model.context, model.vocabulary,
                     name_of(options().type), adapted, coded);
}

}  // namespace terrace
