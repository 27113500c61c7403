// What a GPT-2 is made of: sizes, tensors and first values. Its computation is in gpt2_pass.cpp.
#include <terrace/runtime/models/gpt2.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/runtime/compute/counter_random.h>
#include <terrace/runtime/models/internal/gpt2_tensors.h>

namespace terrace {
namespace {

using gpt2::LayerTensor;

// Streams of first values are a tensor's index in this domain, apart from every other use of the seed.
constexpr uint64_t kFirstValuesDomain = uint64_t{1} << 32;

[[noreturn]] void refuse(const std::string& subject, const std::string& reason, const std::string& advice) {
  throw Error(ErrorKind::config, {"cannot build the GPT-2 model", subject, reason, advice});
}

TensorSpec matrix(std::string name, uint64_t rows, uint64_t columns, DataType type) {
  return {.name = std::move(name), .shape = {rows, columns}, .type = type, .group = Gpt2::kDecayGroup};
}

TensorSpec vector(std::string name, uint64_t count, DataType type) {
  return {.name = std::move(name), .shape = {count}, .type = type, .group = Gpt2::kNoDecayGroup};
}

// What a tensor starts with: every element `constant`, or normal with `deviation`.
struct FirstValues {
  float constant;
  float deviation;
};

FirstValues first_values_of(const ModelConfig& config, TensorId tensor) {
  if (tensor == gpt2::kTokenTable || tensor == gpt2::kPositionTable) return {0.0f, config.init_std};
  if (tensor == gpt2::final_norm_weight(config.layers)) return {1.0f, 0.0f};
  if (tensor == gpt2::final_norm_bias(config.layers)) return {0.0f, 0.0f};
  const double residual_paths = 2.0 * config.layers;
  switch (static_cast<LayerTensor>((index_of(tensor) - gpt2::kFirstLayerTensor) % gpt2::kLayerTensors)) {
    case LayerTensor::norm1_weight:
    case LayerTensor::norm2_weight:
      return {1.0f, 0.0f};
    case LayerTensor::qkv_weight:
    case LayerTensor::hidden_weight:
      return {0.0f, config.init_std};
    case LayerTensor::attention_weight:
    case LayerTensor::output_weight:
      return {0.0f, static_cast<float>(config.init_std / std::sqrt(residual_paths))};
    default:
      return {0.0f, 0.0f};
  }
}

}  // namespace

Gpt2::Gpt2(const ModelConfig& config, const ModelOptions& options) : config_(config), options_(options) {
  if (config_.hidden == 0) config_.hidden = 4 * config.width;
  if (config.layers == 0 || config.heads == 0 || config.width == 0 || config.context == 0 ||
      config.vocabulary == 0) {
    refuse("sizes", "layers, heads, width, context and vocabulary must not be 0", "set them to at least 1");
  }
  if (config.layers > 10000)
    refuse(fmt::format("layers = {}", config.layers), "more than 10000", "use fewer layers");
  if (config.width > 1u << 20 || config.context > 1u << 20) {
    refuse(fmt::format("width = {}, context = {}", config.width, config.context), "more than 1048576",
           "use a smaller width or context");
  }
  if (config.vocabulary > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    refuse(fmt::format("vocabulary = {}", config.vocabulary), "token ids are signed 32-bit numbers",
           "use a smaller vocabulary");
  }
  if (config.width % config.heads != 0) {
    refuse(fmt::format("width = {}, heads = {}", config.width, config.heads),
           "the width is not a multiple of the heads",
           "choose a width that is heads times the size of a head (64 in the released models)");
  }
}

std::vector<TensorSpec> Gpt2::tensors() const {
  const uint64_t width = config_.width;
  const DataType type = options_.type;
  std::vector<TensorSpec> list;
  list.reserve(gpt2::kFirstLayerTensor + config_.layers * gpt2::kLayerTensors + 2);
  list.push_back(matrix("transformer.wte.weight", config_.vocabulary, width, type));
  list.back().backward_uses = 2;  // the head and the embedding
  list.push_back(matrix("transformer.wpe.weight", config_.context, width, type));
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    const std::string prefix = fmt::format("transformer.h.{}.", layer);
    list.push_back(vector(prefix + "ln_1.weight", width, type));
    list.push_back(vector(prefix + "ln_1.bias", width, type));
    list.push_back(matrix(prefix + "attn.c_attn.weight", width, 3 * width, type));
    list.push_back(vector(prefix + "attn.c_attn.bias", 3 * width, type));
    list.push_back(matrix(prefix + "attn.c_proj.weight", width, width, type));
    list.push_back(vector(prefix + "attn.c_proj.bias", width, type));
    list.push_back(vector(prefix + "ln_2.weight", width, type));
    list.push_back(vector(prefix + "ln_2.bias", width, type));
    list.push_back(matrix(prefix + "mlp.c_fc.weight", width, config_.hidden, type));
    list.push_back(vector(prefix + "mlp.c_fc.bias", config_.hidden, type));
    list.push_back(matrix(prefix + "mlp.c_proj.weight", config_.hidden, width, type));
    list.push_back(vector(prefix + "mlp.c_proj.bias", width, type));
  }
  list.push_back(vector("transformer.ln_f.weight", width, type));
  list.push_back(vector("transformer.ln_f.bias", width, type));
  return list;
}

std::vector<WeightSpec> Gpt2::weights() const {
  std::vector<WeightSpec> list;
  for (const TensorSpec& tensor : tensors()) {
    list.push_back({tensor.name, tensor.shape, {TensorId{static_cast<uint32_t>(list.size())}}});
  }
  return list;
}

void Gpt2::initial_values(TensorId tensor, uint64_t first_element, std::span<float> out) const {
  TERRACE_ASSERT(index_of(tensor) <= index_of(gpt2::final_norm_bias(config_.layers)),
                 fmt::format("there is no tensor {}", index_of(tensor)));
  const FirstValues values = first_values_of(config_, tensor);
  if (values.deviation == 0.0f) {
    std::fill(out.begin(), out.end(), values.constant);
  } else {
    fill_normal({.seed = options_.seed, .stream = kFirstValuesDomain | index_of(tensor)}, first_element,
                values.deviation, out);
  }
}

}  // namespace terrace
