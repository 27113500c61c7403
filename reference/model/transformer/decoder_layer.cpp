// One layer of a decoder, forward and backward.
#include <terrace/reference/model/transformer/internal/decoder_pass.h>

namespace terrace::decoder {
namespace {

AttentionRows<const float> read_only(const AttentionRows<float>& rows) {
  return {rows.queries, rows.keys, rows.values, rows.query_stride, rows.key_value_stride};
}

// Which part of `rows` the projection `index` of `count` fills.
std::span<float> projection(const AttentionRows<float>& rows, size_t index) {
  return index == 0 ? rows.queries : index == 1 ? rows.keys : rows.values;
}

}  // namespace

AttentionRows<float> DecoderPass::allocate_qkv(uint32_t layer) {
  const AttentionShape shape = attention_shape();
  const uint64_t queries = shape.query_width(), keys = shape.key_value_width();
  if (tensors.layers[layer].qkv.size() > 1) {
    const std::span<float> first = allocate(queries), second = allocate(keys);
    return {first, second, allocate(keys), queries, keys};
  }
  const uint64_t width = queries + 2 * keys;
  const std::span<float> all = allocate(width);
  return {all, from(all, queries), from(all, queries + keys), width, width};
}

AttentionRows<const float> DecoderPass::seen_by_attention(uint32_t layer, const AttentionRows<float>& qkv) {
  if (cache == nullptr) return read_only(qkv);
  const AttentionShape shape = attention_shape();
  const uint64_t width = shape.key_value_width();
  const RowCopyShape copied{shape.sequence, width, qkv.key_value_stride, width};
  const auto add = [&](std::span<const float> rows, std::span<float> held) {
    for (uint64_t sample = 0; sample < shape.batch; ++sample) {
      ops.copy_rows(copied, from(rows, sample * shape.sequence * qkv.key_value_stride),
                    from(held, (sample * shape.key_rows() + shape.past) * width));
    }
  };
  add(qkv.keys, cache->keys(layer));
  add(qkv.values, cache->values(layer));
  return {qkv.queries, cache->keys(layer), cache->values(layer), qkv.query_stride, width};
}

LayerActivations DecoderPass::allocate_layer() {
  const bool gated = tensors.layers.front().up.has_value();
  LayerActivations kept;
  kept.statistics1 = allocate_statistics(tokens_count());
  kept.statistics2 = allocate_statistics(tokens_count());
  kept.norm1 = allocate(config.width);
  kept.qkv = allocate_qkv(0);
  if (tensors.layers.front().query_norm) {
    const AttentionShape shape = attention_shape();
    kept.raw_queries = allocate(shape.query_width());
    kept.raw_keys = allocate(shape.key_value_width());
    kept.query_statistics = allocate_statistics(tokens_count() * config.heads);
    kept.key_statistics = allocate_statistics(tokens_count() * config.key_value_heads);
  }
  kept.log_sums = allocate(config.heads);
  kept.attention = allocate(attention_shape().query_width());
  kept.middle = allocate(config.width);
  kept.norm2 = allocate(config.width);
  kept.hidden = allocate(config.hidden);
  if (gated) kept.up = allocate(config.hidden);
  kept.activated = allocate(config.hidden);
  return kept;
}

void DecoderPass::layer_forward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                                Phase phase) {
  attention_forward(layer, x, kept, phase);
  hidden_forward(layer, kept, phase);
}

TensorList DecoderPass::qkv_tensors(const LayerTensors& own) const {
  TensorList list(own.attention_norm);
  for (const LinearTensors& linear : own.qkv) list.add(linear);
  if (own.query_norm) list.add(*own.query_norm), list.add(*own.key_norm);
  return list;
}

void DecoderPass::attention_forward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                                    Phase phase) {
  const LayerTensors& own = tensors.layers[layer];
  {
    const Lease lease(access, key(layer, ".attn.qkv", phase), qkv_tensors(own), phase.kind);
    norm_forward(lease, own.attention_norm, x, kept.norm1, kept.statistics1);
    AttentionRows<float> projected = kept.qkv;
    if (own.query_norm) projected.queries = kept.raw_queries, projected.keys = kept.raw_keys;
    for (size_t i = 0; i < own.qkv.size(); ++i) {
      linear_forward(lease, own.qkv[i], kept.norm1, projection(projected, i));
    }
    if (own.query_norm) {
      norm_forward(lease, *own.query_norm, kept.raw_queries, kept.qkv.queries, kept.query_statistics);
      norm_forward(lease, *own.key_norm, kept.raw_keys, kept.qkv.keys, kept.key_statistics);
    }
  }
  rotate(kept.qkv, false);
  ops.attention_forward(attention_shape(), seen_by_attention(layer, kept.qkv), kept.attention, kept.log_sums,
                        arena);
  {
    const Lease lease(access, key(layer, ".attn.proj", phase), TensorList(own.attention_output), phase.kind);
    linear_forward(lease, own.attention_output, kept.attention, kept.middle);
  }
  ops.add(x, kept.middle);
}

void DecoderPass::hidden_forward(uint32_t layer, const LayerActivations& kept, Phase phase) {
  const LayerTensors& own = tensors.layers[layer];
  {
    const Lease lease(access, key(layer, ".mlp.fc", phase), TensorList(own.mlp_norm, own.hidden), phase.kind);
    norm_forward(lease, own.mlp_norm, kept.middle, kept.norm2, kept.statistics2);
    linear_forward(lease, own.hidden, kept.norm2, kept.hidden);
  }
  if (own.up) {
    {
      const Lease lease(access, key(layer, ".mlp.up", phase), TensorList(*own.up), phase.kind);
      linear_forward(lease, *own.up, kept.norm2, kept.up);
    }
    ops.swiglu_forward(kept.hidden, kept.up, kept.activated);
  } else {
    ops.gelu_forward(kept.hidden, kept.activated);
  }
}

void DecoderPass::layer_output(uint32_t layer, const LayerActivations& kept, std::span<float> y,
                               Phase phase) {
  const LinearTensors& output = tensors.layers[layer].mlp_output;
  {
    const Lease lease(access, key(layer, ".mlp.proj", phase), TensorList(output), phase.kind);
    linear_forward(lease, output, kept.activated, y);
  }
  ops.add(kept.middle, y);
}

void DecoderPass::layer_backward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                                 std::span<float> dx) {
  mlp_backward(layer, kept, dx);
  if (below_attention_is_trained(layer)) attention_backward(layer, x, kept, dx);
}

// Whether anything is trained in the layer's attention or further down.
bool DecoderPass::below_attention_is_trained(uint32_t layer) const {
  const LayerTensors& own = tensors.layers[layer];
  return trains_below_layers() || layer > lowest_backward_layer() ||
         tensors.any_trainable(own.first, own.mlp_norm.weight);
}

void DecoderPass::mlp_backward(uint32_t layer, const LayerActivations& kept, std::span<float> dx) {
  using enum Ops::InputGradient;
  const LayerTensors& own = tensors.layers[layer];
  const StackArena::Frame frame(arena);
  const std::span<float> dhidden = allocate(config.hidden);
  {
    const Lease lease(access, key(layer, ".mlp.proj", kBackward), TensorList(own.mlp_output), kBackward.kind);
    linear_backward(lease, own.mlp_output, kept.activated, dx, dhidden, overwrite);
  }
  const std::span<float> dnorm = allocate(config.width);
  if (own.up) {
    const std::span<float> dup = allocate(config.hidden);
    ops.swiglu_backward(kept.hidden, kept.up, dhidden, dup);
    const Lease lease(access, key(layer, ".mlp.up", kBackward), TensorList(*own.up), kBackward.kind);
    linear_backward(lease, *own.up, kept.norm2, dup, dnorm, overwrite);
  } else {
    ops.gelu_backward(kept.hidden, dhidden);
  }
  const Lease lease(access, key(layer, ".mlp.fc", kBackward), TensorList(own.mlp_norm, own.hidden),
                    kBackward.kind);
  linear_backward(lease, own.hidden, kept.norm2, dhidden, dnorm, own.up ? add : overwrite);
  norm_backward(lease, own.mlp_norm, kept.middle, kept.statistics2, dnorm, dx);
}

void DecoderPass::attention_backward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                                     std::span<float> dx) {
  using enum Ops::InputGradient;
  const LayerTensors& own = tensors.layers[layer];
  const StackArena::Frame frame(arena);
  const std::span<float> dattention = allocate(attention_shape().query_width());
  {
    const Lease lease(access, key(layer, ".attn.proj", kBackward), TensorList(own.attention_output),
                      kBackward.kind);
    linear_backward(lease, own.attention_output, kept.attention, dx, dattention, overwrite);
  }
  AttentionRows<float> gradients = allocate_qkv(layer);
  ops.attention_backward(attention_shape(), read_only(kept.qkv), kept.attention, kept.log_sums, dattention,
                         gradients, arena);
  rotate(gradients, true);
  const std::span<float> dnorm = allocate(config.width);
  const Lease lease(access, key(layer, ".attn.qkv", kBackward), qkv_tensors(own), kBackward.kind);
  if (own.query_norm) head_norms_backward(lease, own, kept, gradients);
  for (size_t i = 0; i < own.qkv.size(); ++i) {
    linear_backward(lease, own.qkv[i], kept.norm1, projection(gradients, i), dnorm, i == 0 ? overwrite : add);
  }
  norm_backward(lease, own.attention_norm, x, kept.statistics1, dnorm, dx);
}

void DecoderPass::head_norms_backward(const Lease& lease, const LayerTensors& own,
                                      const LayerActivations& kept, AttentionRows<float>& gradients) {
  const AttentionShape shape = attention_shape();
  const std::span<float> queries = allocate(shape.query_width()), keys = allocate(shape.key_value_width());
  ops.set_zero(queries);
  ops.set_zero(keys);
  norm_backward(lease, *own.query_norm, kept.raw_queries, kept.query_statistics, gradients.queries, queries);
  norm_backward(lease, *own.key_norm, kept.raw_keys, kept.key_statistics, gradients.keys, keys);
  gradients.queries = queries, gradients.keys = keys;
}

}  // namespace terrace::decoder
