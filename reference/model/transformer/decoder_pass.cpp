// In which order a decoder's layers run, and what is kept between their forward and backward pass.
//
// A checkpointed segment of layers keeps its input alone and is computed again; the bits are the same because
// operations have no other input. Layers within a segment nest, so that the last-in first-out arena holds
// exactly what is still needed.
#include <algorithm>
#include <array>

#include <terrace/reference/model/transformer/internal/decoder_pass.h>

namespace terrace::decoder {

bool DecoderPass::embedding_is_trainable() const {
  return tensors.any_trainable(tensors.tokens) ||
         (tensors.positions && tensors.trainable(*tensors.positions));
}

bool DecoderPass::trains_below_layers() const {
  return embedding_is_trainable() || (config.part && !config.part->has_embedding);
}

uint32_t DecoderPass::lowest_backward_layer() const {
  if (trains_below_layers()) return 0;
  uint32_t layer = 0;
  while (layer < config.layers &&
         !tensors.any_trainable(tensors.layers[layer].first, tensors.layers[layer].end)) {
    ++layer;
  }
  return layer;
}

void DecoderPass::run_forgetting(uint32_t layer, uint32_t end, std::span<const float> x, std::span<float> y,
                                 Phase phase) {
  for (; layer < end; ++layer, x = y) {
    const StackArena::Frame forgotten(arena);
    const LayerActivations kept = allocate_layer();
    layer_forward(layer, x, kept, phase);
    layer_output(layer, kept, y, phase);
  }
}

void DecoderPass::run_keeping(uint32_t layer, uint32_t end, std::span<const float> x, std::span<float> dx,
                              Phase phase, const FunctionRef<void(std::span<const float>)>* above) {
  if (layer == end) {
    if (above != nullptr) (*above)(x);
    return;
  }
  const StackArena::Frame frame(arena);
  const LayerActivations kept = allocate_layer();
  layer_forward(layer, x, kept, phase);
  {
    const StackArena::Frame output_frame(arena);
    std::span<const float> output;
    if (above != nullptr || layer + 1 < end) {
      const std::span<float> y = allocate(config.width);
      layer_output(layer, kept, y, phase);
      output = y;
    }
    run_keeping(layer + 1, end, output, dx, phase, above);
  }
  layer_backward(layer, x, kept, dx);
}

void DecoderPass::run_checkpointed(uint32_t first, std::span<float> x, std::span<float> dx,
                                   const FunctionRef<void(std::span<const float>)>& above) {
  const Segments segments(first, config.layers, options.checkpoint_count);
  if (segments.count() == 0) return above(x);
  if (store != nullptr) return run_stored(segments, x, dx, above);
  const uint64_t size = x.size();
  const std::span<float> outputs = allocate(config.width * segments.count());
  const auto output_of = [&](uint32_t segment) { return from(outputs, segment * size).first(size); };
  const auto input_of = [&](uint32_t segment) { return segment == 0 ? x : output_of(segment - 1); };
  for (uint32_t s = 0; s < segments.count(); ++s) {
    run_forgetting(segments.begin(s), segments.end(s), input_of(s), output_of(s), kForward);
  }
  above(output_of(segments.count() - 1));
  for (uint32_t s = segments.count(); s-- > 0;) {
    run_keeping(segments.begin(s), segments.end(s), input_of(s), dx, kRecompute, nullptr);
  }
}

// The inputs of segments live in the store; two of them in the arena: the one that is computed with, and the
// one that comes or goes meanwhile. The last segment's input never leaves.
void DecoderPass::run_stored(const Segments& segments, std::span<float> x, std::span<float> dx,
                             const FunctionRef<void(std::span<const float>)>& above) {
  const uint32_t count = segments.count();
  const std::array<std::span<float>, 2> buffers = {x, allocate(config.width)};
  for (uint32_t s = 0; s < count; ++s) {
    if (s + 1 < count) store->start_put(s, buffers[s % 2]);
    if (s > 0) store->wait(s - 1);  // its buffer is written now
    run_forgetting(segments.begin(s), segments.end(s), buffers[s % 2], buffers[(s + 1) % 2], kForward);
  }
  above(buffers[count % 2]);
  for (uint32_t s = count; s-- > 0;) {
    if (s + 1 < count) store->wait(s);
    if (s > 0) store->start_get(s - 1, buffers[(s - 1) % 2]);
    run_keeping(segments.begin(s), segments.end(s), buffers[s % 2], dx, kRecompute, nullptr);
  }
}

float DecoderPass::train(float loss_scale) {
  const StackArena::Frame frame(arena);
  batch.tokens = readable(batch.tokens);
  batch.targets = readable(batch.targets);
  prepare_rotation();
  HeadActivations late_head;
  if (head_gradient_is_late()) late_head = allocate_head();
  const std::span<float> x = allocate(config.width);
  const std::span<float> dx = allocate(config.width);
  embed(x, kForward);
  const uint32_t lowest = lowest_backward_layer();
  run_forgetting(0, lowest, x, x, kForward);
  float loss = 0.0f;
  const auto run_head = [&](std::span<const float> last) {
    const StackArena::Frame head_frame(arena);
    const HeadActivations kept = head_gradient_is_late() ? late_head : allocate_head();
    head_forward(last, kept, kForward, loss);
    head_backward(last, kept, dx, loss_scale);
  };
  const FunctionRef<void(std::span<const float>)> above(run_head);
  if (options.checkpoint_activations) {
    run_checkpointed(lowest, x, dx, above);
  } else {
    run_keeping(lowest, config.layers, x, dx, kForward, &above);
  }
  if (embedding_is_trainable()) embed_backward(dx, late_head, loss_scale);
  ops.finish();
  return loss;
}

// The last layer's output, in the caller's frame.
std::span<const float> DecoderPass::run_inference() {
  batch.tokens = readable(batch.tokens);
  prepare_rotation();
  const std::span<float> x = allocate(config.width);
  embed(x, kInference);
  run_forgetting(0, config.layers, x, x, kInference);
  return x;
}

float DecoderPass::evaluate() {
  const StackArena::Frame frame(arena);
  batch.targets = readable(batch.targets);
  const std::span<const float> x = run_inference();
  float loss = 0.0f;
  head_forward(x, allocate_head(), kInference, loss);
  ops.finish();
  return loss;
}

}  // namespace terrace::decoder
