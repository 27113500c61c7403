// The tensors of a decoder: the list that is placed, the list that weight files have, and the tensors of
// every step of the computation. GPT-2 and the Llama family differ in these tables alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/memory/space/tensor.h>
#include <terrace/reference/model/transformer/model.h>

namespace terrace::decoder {

struct NormTensors {
  TensorId weight{};
  std::optional<TensorId> bias;  // a layer norm has one, a root-mean-square norm has none
  uint64_t width = 0;            // of the normalized rows: the model's width, or a head's
};

struct AdapterTensors {
  TensorId a{};
  TensorId b{};
  uint64_t rank = 0;
  float scale = 1.0f;
};

struct LinearTensors {
  TensorId weight{};
  std::optional<TensorId> bias;
  std::optional<AdapterTensors> adapter;
  uint64_t inputs = 0;
  uint64_t outputs = 0;
  bool outputs_first = false;  // [outputs, inputs], else [inputs, outputs]
  CodedWeight coded = {};      // if the weight is one of few bits
};

// A [rows, width] table in parts of part_rows rows, the last one shorter.
struct TableTensors {
  TensorId first{};
  uint32_t part_count = 0;
  uint64_t part_rows = 0;
  uint64_t rows = 0;

  TensorId part(uint32_t index) const { return TensorId{index_of(first) + index}; }
  uint64_t first_row(uint32_t index) const { return index * part_rows; }
  uint64_t rows_of(uint32_t index) const {
    return index + 1 < part_count ? part_rows : rows - first_row(index);
  }
};

struct LayerTensors {
  NormTensors attention_norm;
  std::vector<LinearTensors> qkv;                   // one for all three, or queries, keys, values
  std::optional<NormTensors> query_norm, key_norm;  // over every head; both or neither
  LinearTensors attention_output;
  NormTensors mlp_norm;
  LinearTensors hidden;             // the gate, if there is one
  std::optional<LinearTensors> up;  // if the layer has a gate
  LinearTensors mlp_output;
  TensorId first{};  // the layer's tensors are [first, end)
  TensorId end{};
};

// The first values of a tensor. If `deviation` or `bound` is set, they come from element `first_element` on
// of the stream `stream`: normal with `deviation`, or uniform within `bound`. Else every element is
// `constant`. Those of a coded weight become the words of its tensor.
struct FirstValues {
  float constant = 0.0f;
  float deviation = 0.0f;
  uint64_t stream = 0;
  uint64_t first_element = 0;
  float bound = 0.0f;
  CodedWeight coded = {};
};

struct DecoderTensors {
  std::vector<TensorSpec> specs;
  std::vector<FirstValues> first_values;  // by TensorId
  std::vector<WeightSpec> weights;
  std::vector<AdapterSpec> adapters;

  TableTensors tokens;
  std::optional<TensorId> positions;
  std::vector<LayerTensors> layers;
  NormTensors final_norm;
  TableTensors head;  // the token table, or a table of its own

  bool trainable(TensorId tensor) const { return specs[index_of(tensor)].trainable; }
  DataType type(TensorId tensor) const { return specs[index_of(tensor)].type; }
  bool any_trainable(TensorId first, TensorId end) const;
  bool any_trainable(const TableTensors& table) const;
};

// `config` is complete and checked. Throws Error(config) when a pattern of options.frozen fits no weight or a
// pattern of options.lora fits no linear layer.
DecoderTensors tensors_of(const ModelConfig& config, const ModelOptions& options);

}  // namespace terrace::decoder
