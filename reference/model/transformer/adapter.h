// Low-rank adapters (LoRA) of a model: their tensors, the weights that they stand beside, and the merged
// weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/memory/space/tensor.h>
#include <terrace/reference/model/transformer/model_config.h>

namespace terrace {

// Adapters beside linear layers. The layers' own weights, like all others, are then frozen.
struct LoraOptions {
  uint32_t rank = 8;
  double alpha = 16;  // the product of the matrices is scaled by alpha / rank
  // Patterns over whole module names, or last parts of names ("q_proj"). Empty: PEFT's default, queries and
  // values, which in GPT-2 are one module.
  std::vector<std::string> targets = {};
  bool operator==(const LoraOptions&) const = default;
};

// Returns the targets that stand in for empty ones.
std::vector<std::string> default_adapter_targets(ModelFamily family);

// The merged weight is W + scale * B A, or W + scale * (B A)^T where W is [inputs, outputs].
struct AdapterSpec {
  std::string module;  // "model.layers.0.self_attn.q_proj": the weight's name without ".weight"
  size_t weight = 0;   // an index into Model::weights()
  TensorId a{};        // [rank, inputs]
  TensorId b{};        // [outputs, rank]
  uint64_t inputs = 0;
  uint64_t outputs = 0;
  uint64_t rank = 0;
  float scale = 1.0f;          // alpha / rank
  bool outputs_first = false;  // W is [outputs, inputs], else [inputs, outputs]
};

// Adds the adapter to elements [first_element, first_element + values.size()) of its weight, in fp32, as one
// chain per element over the ranks in ascending order. `a` and `b` are whole. Thread-safe.
void merge_adapter(const AdapterSpec& adapter, std::span<const float> a, std::span<const float> b,
                   uint64_t first_element, std::span<float> values);

}  // namespace terrace
