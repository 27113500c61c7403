#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <terrace/base/error.h>
#include <terrace/reference/model/transformer/internal/adapter_targets.h>
#include <terrace/reference/model/transformer/internal/decoder_tensors.h>
#include <terrace/runtime/config/name_pattern.h>
#include <terrace/runtime/config/parameter_groups.h>

namespace terrace::decoder {
namespace {

// Rows of a table's part: about `elements`, and a multiple of what the loss sums at once.
uint64_t part_rows_of(uint64_t width, uint64_t elements) {
  constexpr uint64_t unit = VocabularyShape::kLossColumns;
  return std::max<uint64_t>(elements / width / unit, 1) * unit;
}

// Streams of adapters' first values: apart from those of weights, which are numbered from 0.
constexpr uint64_t kAdapterStreams = uint64_t{1} << 31;

class Builder {
 public:
  Builder(const ModelConfig& config, const ModelOptions& options)
      : config_(config), options_(options), targets_(config, options) {}

  DecoderTensors gpt2();
  DecoderTensors llama();

 private:
  TensorId add(std::string name, std::vector<uint64_t> shape, float constant, float deviation, DataType type);
  TableTensors add_table(std::string name, uint32_t backward_uses);
  NormTensors add_norm(const std::string& name, uint64_t width, bool biased);
  LinearTensors add_linear(const std::string& name, uint64_t inputs, uint64_t outputs, bool outputs_first,
                           bool biased, float deviation);
  void add_gpt2_layer(uint32_t layer);
  void add_llama_layer(uint32_t layer);
  CodedWeight encode(TensorId tensor);
  AdapterTensors add_adapter(const std::string& module, const LinearTensors& linear);
  TensorId add_adapter_matrix(std::string name, std::vector<uint64_t> shape, float bound);
  void freeze();
  // `tokens` is the name of the token table.
  DecoderTensors finish(const char* tokens);

  TensorId next() const { return TensorId{static_cast<uint32_t>(list_.specs.size())}; }
  ModelPart part() const { return config_.part.value_or(ModelPart()); }
  uint32_t layer_end() const { return part().first_layer + config_.layers; }
  uint32_t tied_uses() const { return config_.tied_embeddings && !options_.late_head_gradient ? 2 : 1; }

  const ModelConfig& config_;
  const ModelOptions& options_;
  AdapterTargets targets_;
  DecoderTensors list_;
};

TensorId Builder::add(std::string name, std::vector<uint64_t> shape, float constant, float deviation,
                      DataType type) {
  const TensorId id = next();
  const uint32_t group = shape.size() == 1 ? kNoDecayGroup : kDecayGroup;
  list_.first_values.push_back({constant, deviation, list_.weights.size(), 0});
  list_.weights.push_back({name, shape, {id}});
  list_.specs.push_back({.name = std::move(name), .shape = std::move(shape), .type = type, .group = group});
  return id;
}

TableTensors Builder::add_table(std::string name, uint32_t backward_uses) {
  const uint64_t width = config_.width;
  TableTensors table{.first = next(),
                     .part_rows = part_rows_of(width, options_.table_part_elements),
                     .rows = config_.vocabulary};
  table.part_count = static_cast<uint32_t>(divide_up(table.rows, table.part_rows));
  WeightSpec weight{name, {table.rows, width}, {}};
  for (uint32_t part = 0; part < table.part_count; ++part) {
    weight.parts.push_back(next());
    list_.first_values.push_back(
        {0.0f, config_.init_std, list_.weights.size(), table.first_row(part) * width});
    list_.specs.push_back({.name = table.part_count == 1 ? name : fmt::format("{}[{}]", name, part),
                           .shape = {table.rows_of(part), width},
                           .type = options_.type,
                           .group = kDecayGroup,
                           .backward_uses = backward_uses});
  }
  list_.weights.push_back(std::move(weight));
  return table;
}

NormTensors Builder::add_norm(const std::string& name, uint64_t width, bool biased) {
  const DataType type = options_.norm_type.value_or(options_.type);
  NormTensors norm{add(name + ".weight", {width}, 1.0f, 0.0f, type), std::nullopt, width};
  if (biased) norm.bias = add(name + ".bias", {width}, 0.0f, 0.0f, type);
  return norm;
}

LinearTensors Builder::add_linear(const std::string& name, uint64_t inputs, uint64_t outputs,
                                  bool outputs_first, bool biased, float deviation) {
  LinearTensors linear;
  linear.inputs = inputs, linear.outputs = outputs, linear.outputs_first = outputs_first;
  const std::vector<uint64_t> shape =
      outputs_first ? std::vector<uint64_t>{outputs, inputs} : std::vector<uint64_t>{inputs, outputs};
  linear.weight = add(name + ".weight", shape, 0.0f, deviation, options_.type);
  if (options_.quantize_base != WeightCode::none) linear.coded = encode(linear.weight);
  if (biased) linear.bias = add(name + ".bias", {outputs}, 0.0f, 0.0f, options_.type);
  if (targets_.wants(name)) linear.adapter = add_adapter(name, linear);
  return linear;
}

// Only the words of the tensor that was added last are kept.
CodedWeight Builder::encode(TensorId tensor) {
  TensorSpec& spec = list_.specs[index_of(tensor)];
  const CodedWeight coded{options_.quantize_base, spec.element_count(), spec.type};
  spec.shape = {coded.words()};
  spec.type = DataType::fp32;
  list_.weights.back().coded = list_.first_values[index_of(tensor)].coded = coded;
  return coded;
}

TensorId Builder::add_adapter_matrix(std::string name, std::vector<uint64_t> shape, float bound) {
  const TensorId id = next();
  list_.first_values.push_back({.stream = kAdapterStreams + index_of(id), .bound = bound});
  list_.specs.push_back(
      {.name = std::move(name), .shape = std::move(shape), .type = options_.type, .group = kDecayGroup});
  return id;
}

AdapterTensors Builder::add_adapter(const std::string& module, const LinearTensors& linear) {
  const uint64_t rank = options_.lora->rank;
  const float bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(linear.inputs)));
  AdapterSpec spec;
  spec.module = module;
  spec.weight = list_.weights.size() - (linear.bias ? 2 : 1);
  spec.a = add_adapter_matrix(module + ".lora_A.weight", {rank, linear.inputs}, bound);
  spec.b = add_adapter_matrix(module + ".lora_B.weight", {linear.outputs, rank}, 0.0f);
  spec.inputs = linear.inputs, spec.outputs = linear.outputs, spec.rank = rank;
  spec.scale = static_cast<float>(options_.lora->alpha / static_cast<double>(rank));
  spec.outputs_first = linear.outputs_first;
  list_.adapters.push_back(spec);
  return {spec.a, spec.b, rank, spec.scale};
}

void Builder::add_gpt2_layer(uint32_t layer) {
  const uint64_t width = config_.width, heads_width = uint64_t{config_.heads} * config_.head_size;
  const std::string name = fmt::format("transformer.h.{}.", layer);
  // The residual stream sums 2 * layers projections: each starts smaller by the root of that.
  const float residual = static_cast<float>(config_.init_std / std::sqrt(2.0 * config_.layers));
  LayerTensors tensors;
  tensors.first = next();
  tensors.attention_norm = add_norm(name + "ln_1", width, true);
  tensors.qkv = {add_linear(name + "attn.c_attn", width, 3 * heads_width, false, true, config_.init_std)};
  tensors.attention_output = add_linear(name + "attn.c_proj", heads_width, width, false, true, residual);
  tensors.mlp_norm = add_norm(name + "ln_2", width, true);
  tensors.hidden = add_linear(name + "mlp.c_fc", width, config_.hidden, false, true, config_.init_std);
  tensors.mlp_output = add_linear(name + "mlp.c_proj", config_.hidden, width, false, true, residual);
  tensors.end = next();
  list_.layers.push_back(std::move(tensors));
}

DecoderTensors Builder::gpt2() {
  constexpr const char* kTokens = "transformer.wte.weight";
  if (part().has_embedding) {
    list_.tokens = add_table(kTokens, tied_uses());
    list_.positions = add("transformer.wpe.weight", {config_.positions, config_.width}, 0.0f,
                          config_.init_std, options_.type);
  }
  for (uint32_t layer = part().first_layer; layer < layer_end(); ++layer) add_gpt2_layer(layer);
  if (part().has_norm) list_.final_norm = add_norm("transformer.ln_f", config_.width, true);
  return finish(kTokens);
}

void Builder::add_llama_layer(uint32_t layer) {
  const uint64_t width = config_.width, queries = uint64_t{config_.heads} * config_.head_size;
  const uint64_t keys = uint64_t{config_.key_value_heads} * config_.head_size;
  const std::string name = fmt::format("model.layers.{}.", layer);
  const auto linear = [&](const char* part, uint64_t inputs, uint64_t outputs, bool biased) {
    return add_linear(name + part, inputs, outputs, true, biased, config_.init_std);
  };
  LayerTensors tensors;
  tensors.first = next();
  tensors.attention_norm = add_norm(name + "input_layernorm", width, false);
  tensors.qkv.push_back(linear("self_attn.q_proj", width, queries, config_.attention_bias));
  tensors.qkv.push_back(linear("self_attn.k_proj", width, keys, config_.attention_bias));
  tensors.qkv.push_back(linear("self_attn.v_proj", width, keys, config_.attention_bias));
  if (config_.family == ModelFamily::qwen3) {
    tensors.query_norm = add_norm(name + "self_attn.q_norm", config_.head_size, false);
    tensors.key_norm = add_norm(name + "self_attn.k_norm", config_.head_size, false);
  }
  tensors.attention_output = linear("self_attn.o_proj", queries, width, config_.output_bias);
  tensors.mlp_norm = add_norm(name + "post_attention_layernorm", width, false);
  tensors.hidden = linear("mlp.gate_proj", width, config_.hidden, config_.mlp_bias);
  tensors.up = linear("mlp.up_proj", width, config_.hidden, config_.mlp_bias);
  tensors.mlp_output = linear("mlp.down_proj", config_.hidden, width, config_.mlp_bias);
  tensors.end = next();
  list_.layers.push_back(std::move(tensors));
}

DecoderTensors Builder::llama() {
  constexpr const char* kTokens = "model.embed_tokens.weight";
  if (part().has_embedding) list_.tokens = add_table(kTokens, tied_uses());
  for (uint32_t layer = part().first_layer; layer < layer_end(); ++layer) add_llama_layer(layer);
  if (part().has_norm) list_.final_norm = add_norm("model.norm", config_.width, false);
  return finish(kTokens);
}

DecoderTensors Builder::finish(const char* tokens) {
  if (config_.tied_embeddings) {
    list_.head = list_.tokens;
  } else if (part().has_head) {
    list_.head = add_table(part().ties_across ? tokens : "lm_head.weight", 1);
  }
  freeze();
  // The first stage trains the table, and the one with the head computes with a copy.
  if (part().ties_across && part().has_head) {
    for (uint32_t p = 0; p < list_.head.part_count; ++p)
      list_.specs[index_of(list_.head.part(p))].trainable = false;
  }
  return std::move(list_);
}

void Builder::freeze() {
  if (!config_.part) {  // what fits nothing here may fit in another stage
    const std::string& linear = list_.specs[index_of(list_.layers.front().qkv.front().weight)].name;
    targets_.check(linear.substr(0, linear.rfind('.')));
  }
  if (options_.lora) {
    for (const WeightSpec& weight : list_.weights) {
      for (const TensorId part : weight.parts) list_.specs[index_of(part)].trainable = false;
    }
  }
  for (const std::string& pattern : options_.frozen) {
    bool fits = false;
    for (const WeightSpec& weight : list_.weights) {
      if (!matches_pattern(pattern, weight.name)) continue;
      fits = true;
      for (const TensorId part : weight.parts) list_.specs[index_of(part)].trainable = false;
    }
    if (fits || config_.part) continue;
    throw Error(ErrorKind::config,
                {"cannot freeze weights", pattern, "no weight of the model has such a name",
                 fmt::format("names look like \"{}\"; * stands for anything", list_.weights[1].name)});
  }
}

}  // namespace

bool DecoderTensors::any_trainable(TensorId from, TensorId to) const {
  return std::any_of(specs.begin() + index_of(from), specs.begin() + index_of(to),
                     [](const TensorSpec& spec) { return spec.trainable; });
}

bool DecoderTensors::any_trainable(const TableTensors& table) const {
  return any_trainable(table.first, table.part(table.part_count));
}

DecoderTensors tensors_of(const ModelConfig& config, const ModelOptions& options) {
  Builder builder(config, options);
  return config.family == ModelFamily::gpt2 ? builder.gpt2() : builder.llama();
}

}  // namespace terrace::decoder
