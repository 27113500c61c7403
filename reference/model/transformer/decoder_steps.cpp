// The steps that all parts of a decoder are made of: norms, linear layers and rotary positions over leases.
#include <terrace/reference/model/transformer/internal/decoder_pass.h>
#include <terrace/reference/model/transformer/internal/rotary.h>

namespace terrace::decoder {

void DecoderPass::norm_forward(const Lease& lease, const NormTensors& norm, std::span<const float> x,
                               std::span<float> y, const NormStatistics& statistics) {
  const NormShape shape{x.size() / norm.width, norm.width, config.norm_epsilon};
  if (norm.bias) {
    ops.layer_norm_forward(shape, x, view(lease, norm.weight), view(lease, *norm.bias), y, statistics, arena);
  } else {
    ops.rms_norm_forward(shape, x, view(lease, norm.weight), y, statistics, arena);
  }
}

void DecoderPass::norm_backward(const Lease& lease, const NormTensors& norm, std::span<const float> x,
                                const NormStatistics& statistics, std::span<const float> dy,
                                std::span<float> dx) {
  const NormShape shape{x.size() / norm.width, norm.width, config.norm_epsilon};
  if (norm.bias) {
    ops.layer_norm_backward(shape, x, statistics, view(lease, norm.weight), dy, dx,
                            target(lease, norm.weight), target(lease, *norm.bias), arena);
  } else {
    ops.rms_norm_backward(shape, x, statistics, view(lease, norm.weight), dy, dx, target(lease, norm.weight),
                          arena);
  }
}

void DecoderPass::linear_forward(const Lease& lease, const LinearTensors& linear, std::span<const float> x,
                                 std::span<float> y) {
  const LinearShape shape{tokens_count(), linear.inputs, linear.outputs, linear.outputs_first,
                          linear.bias.has_value()};
  {
    const StackArena::Frame frame(arena);
    ops.linear_forward(shape, x, weight_of(lease, linear),
                       linear.bias ? view(lease, *linear.bias) : ParameterView{}, y, arena);
  }
  if (!linear.adapter) return;
  ops.adapter_forward(adapter_shape(linear), x, view(lease, linear.adapter->a),
                      view(lease, linear.adapter->b), y, arena);
}

ParameterView DecoderPass::weight_of(const Lease& lease, const LinearTensors& linear) {
  const ParameterView whole = view(lease, linear.weight);
  return linear.coded.is_coded() ? ops.decode_weight(linear.coded, whole.data, arena) : whole;
}

AdapterShape DecoderPass::adapter_shape(const LinearTensors& linear) const {
  return {tokens_count(), linear.inputs, linear.outputs, linear.adapter->rank, linear.adapter->scale};
}

void DecoderPass::linear_backward(const Lease& lease, const LinearTensors& linear, std::span<const float> x,
                                  std::span<const float> dy, std::span<float> dx,
                                  Ops::InputGradient existing) {
  const LinearShape shape{tokens_count(), linear.inputs, linear.outputs, linear.outputs_first,
                          linear.bias.has_value()};
  {
    const StackArena::Frame frame(arena);
    ops.linear_backward(shape, x, weight_of(lease, linear), dy, dx, existing, target(lease, linear.weight),
                        linear.bias ? target(lease, *linear.bias) : GradientTarget{}, arena);
  }
  if (!linear.adapter) return;
  const AdapterTensors& adapter = *linear.adapter;
  ops.adapter_backward(adapter_shape(linear), x, view(lease, adapter.a), view(lease, adapter.b), dy, dx,
                       target(lease, adapter.a), target(lease, adapter.b), arena);
}

std::span<const int32_t> DecoderPass::readable(std::span<const int32_t> ids) {
  const std::span<int32_t> memory = ops.memory_for_ids(ids.size(), arena);
  if (memory.empty()) return ids;
  ops.send_ids(ids, memory);
  return memory;
}

// Its memory belongs to the caller's frame.
void DecoderPass::prepare_rotation() {
  if (!is_llama()) return;
  const uint64_t half = config.head_size / 2;
  rotary_ = {arena.allocate<float>(batch.sequence * half), arena.allocate<float>(batch.sequence * half)};
  ops.fill_rotary(
      rotary_, half,
      [&](const RotaryTable& table, std::span<float> frequencies) {
        fill_rotary_frequencies(config, first_position() + batch.sequence, frequencies);
        fill_rotary_table(config, first_position(), frequencies, table.cosines, table.sines);
      },
      arena);
}

void DecoderPass::rotate(const AttentionRows<float>& rows, bool inverse) {
  if (!is_llama()) return;
  ops.rotate({tokens_count(), batch.sequence, config.heads, config.head_size}, rotary_, inverse,
             rows.queries);
  ops.rotate({tokens_count(), batch.sequence, config.key_value_heads, config.head_size}, rotary_, inverse,
             rows.keys);
}

}  // namespace terrace::decoder
