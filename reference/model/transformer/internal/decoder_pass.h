// DecoderPass: one run of a decoder over one micro-batch. It trains, evaluates, or computes the logits of the
// next token.
//
// A layer is a few leases in each direction: {norm, queries, keys, values}, {attention's projection}, {norm,
// gate or hidden}, {up}, {output}. A vocabulary table is one lease per part. Nothing allocates but the arena.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include <terrace/base/function_ref.h>
#include <terrace/base/units.h>
#include <terrace/reference/model/transformer/internal/decoder_tensors.h>
#include <terrace/reference/model/transformer/internal/operation_key.h>

namespace terrace::decoder {

// How the operations of a pass use their tensors, and the suffix of their keys.
struct Phase {
  UseKind kind;
  std::string_view suffix;
};
inline constexpr Phase kForward{UseKind::forward, "/forward"};
inline constexpr Phase kRecompute{UseKind::forward, "/recompute"};
inline constexpr Phase kBackward{UseKind::backward, "/backward"};
inline constexpr Phase kInference{UseKind::inference, "/inference"};

// The tensors of one lease.
class TensorList {
 public:
  TensorList() = default;
  template <typename... Parts>
  explicit TensorList(const Parts&... parts) {
    (add(parts), ...);
  }
  void add(TensorId tensor) {
    TERRACE_ASSERT(size_ < tensors_.size(), "a lease of too many tensors");
    tensors_[size_++] = tensor;
  }
  void add(const NormTensors& norm) {
    add(norm.weight);
    if (norm.bias) add(*norm.bias);
  }
  void add(const LinearTensors& linear) {
    add(linear.weight);
    if (linear.bias) add(*linear.bias);
    if (!linear.adapter) return;
    add(linear.adapter->a);
    add(linear.adapter->b);
  }
  operator std::span<const TensorId>() const {  // NOLINT: implicit on purpose
    return {tensors_.data(), size_};
  }

 private:
  std::array<TensorId, 16> tensors_{};
  size_t size_ = 0;
};

// Returns the elements from `offset` on; a dry run's null address stays null.
template <typename Float>
std::span<Float> from(std::span<Float> all, uint64_t offset) {
  return {all.data() == nullptr ? nullptr : all.data() + offset, all.size() - offset};
}

// The values that a layer's backward pass needs besides the layer's input.
struct LayerActivations {
  NormStatistics statistics1;
  NormStatistics statistics2;
  std::span<float> norm1;
  AttentionRows<float> qkv;
  std::span<float> raw_queries, raw_keys;  // before their norms, if there are any
  NormStatistics query_statistics, key_statistics;
  std::span<float> log_sums;
  std::span<float> attention;
  std::span<float> middle;  // the residual stream between attention and the feed-forward part
  std::span<float> norm2;
  std::span<float> hidden;  // before the activation function
  std::span<float> up;      // if the layer has a gate
  std::span<float> activated;
};

// The values that the head's backward pass needs besides its input.
struct HeadActivations {
  NormStatistics statistics;
  std::span<float> normalised;
  std::span<float> log_sums;
};

struct PassContext {
  const ModelConfig& config;
  const ModelOptions& options;
  const DecoderTensors& tensors;
  const Ops& ops;
  ParameterAccess& access;
  StackArena& arena;
  MicroBatch batch;
  std::string_view prefix;
  ActivationStore* store = nullptr;
  KeyValueCache* cache = nullptr;  // of the tokens before those of the batch, which go there too
};

// Layers [first, layers) cut into segments whose inputs are kept: `wanted` segments; 0: one per layer.
struct Segments {
  Segments(uint32_t first_layer, uint32_t layer_end, uint32_t wanted)
      : first(first_layer), layers(layer_end) {
    const uint32_t run = layers - first;
    const uint32_t most = wanted == 0 ? run : std::min(wanted, run);
    each = run == 0 ? 1 : static_cast<uint32_t>(divide_up(run, most));
  }
  uint32_t count() const { return static_cast<uint32_t>(divide_up(layers - first, each)); }
  uint32_t begin(uint32_t segment) const { return first + segment * each; }
  uint32_t end(uint32_t segment) const { return std::min(begin(segment) + each, layers); }

  uint32_t first;
  uint32_t layers;
  uint32_t each;
};

class DecoderPass : protected PassContext {
 public:
  explicit DecoderPass(const PassContext& context) : PassContext(context) {}
  ~DecoderPass() { ops.forget_results(); }  // for a pass that failed, whose results have no place any more
  DecoderPass(const DecoderPass&) = delete;
  DecoderPass& operator=(const DecoderPass&) = delete;

  float train(float loss_scale);
  float evaluate();
  void next_token_logits(std::span<float> logits);

 protected:
  // --- decoder_pass.cpp: the order of everything ---
  // The lowest layer through which gradients go; nothing below it is trained.
  uint32_t lowest_backward_layer() const;
  bool embedding_is_trainable() const;
  // Whether anything in front of the first layer is trained, be it in another stage.
  bool trains_below_layers() const;
  // Runs `above` and, forward and backward, the layers [layer, end) below it, keeping all their activations.
  // dx becomes the gradient of x. Without `above`, dx already holds the gradient of the last layer's output.
  void run_keeping(uint32_t layer, uint32_t end, std::span<const float> x, std::span<float> dx, Phase phase,
                   const FunctionRef<void(std::span<const float>)>* above);
  // Runs the layers [first, layers) keeping only the inputs of segments, and `above` on the last layer's
  // output.
  void run_checkpointed(uint32_t first, std::span<float> x, std::span<float> dx,
                        const FunctionRef<void(std::span<const float>)>& above);
  void run_stored(const Segments& segments, std::span<float> x, std::span<float> dx,
                  const FunctionRef<void(std::span<const float>)>& above);
  // Runs layers [layer, end) forward from x to y, which may be x, and keeps no activations.
  void run_forgetting(uint32_t layer, uint32_t end, std::span<const float> x, std::span<float> y,
                      Phase phase);
  std::span<const float> run_inference();

  // --- decoder_layer.cpp ---
  LayerActivations allocate_layer();
  // Runs all of a layer but its output projection.
  void layer_forward(uint32_t layer, std::span<const float> x, const LayerActivations& kept, Phase phase);
  void attention_forward(uint32_t layer, std::span<const float> x, const LayerActivations& kept, Phase phase);
  void hidden_forward(uint32_t layer, const LayerActivations& kept, Phase phase);
  // `y` may be the layer's input, which is no longer read.
  void layer_output(uint32_t layer, const LayerActivations& kept, std::span<float> y, Phase phase);
  // dx is the gradient of the layer's output and becomes that of its input.
  void layer_backward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                      std::span<float> dx);
  void mlp_backward(uint32_t layer, const LayerActivations& kept, std::span<float> dx);
  void attention_backward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                          std::span<float> dx);
  bool below_attention_is_trained(uint32_t layer) const;
  AttentionRows<float> allocate_qkv(uint32_t layer);
  // Returns what attention reads: with a cache, its keys and values, to which those of the batch are added.
  AttentionRows<const float> seen_by_attention(uint32_t layer, const AttentionRows<float>& qkv);
  TensorList qkv_tensors(const LayerTensors& own) const;
  // Turns the gradients of queries and keys into those of their norms' inputs.
  void head_norms_backward(const Lease& lease, const LayerTensors& own, const LayerActivations& kept,
                           AttentionRows<float>& gradients);

  // --- decoder_vocabulary.cpp ---
  void embed(std::span<float> x, Phase phase);
  void embed_part(uint32_t part, std::span<float> x, Phase phase);
  void embed_positions(std::span<float> x, Phase phase);
  // `head` is the state that the head leaves for a late head gradient.
  void embed_backward(std::span<const float> dx, const HeadActivations& head, float loss_scale);
  void embed_part_backward(uint32_t part, const TokenOrder& order, std::span<const float> dx,
                           const HeadActivations& head, float loss_scale);
  void embed_positions_backward(std::span<const float> dx);
  HeadActivations allocate_head();
  // `loss` is valid after ops.finish().
  void head_forward(std::span<const float> x, const HeadActivations& kept, Phase phase, float& loss);
  void head_loss(std::span<const RunningLoss> running, const HeadActivations& kept, float& loss);
  void head_norm_forward(std::span<const float> x, const HeadActivations& kept, Phase phase);
  void head_part_forward(uint32_t part, const HeadActivations& kept, std::span<RunningLoss> running,
                         Phase phase);
  // dx becomes the gradient of x.
  void head_backward(std::span<const float> x, const HeadActivations& kept, std::span<float> dx,
                     float loss_scale);
  void head_part_backward(uint32_t part, const HeadActivations& kept, std::span<float> dnormalised,
                          float loss_scale);
  void head_norm_backward(std::span<const float> x, const HeadActivations& kept,
                          std::span<const float> dnormalised, std::span<float> dx);
  bool head_gradient_is_late() const { return config.tied_embeddings && options.late_head_gradient; }

  // --- decoder_steps.cpp: the steps of all parts ---
  void norm_forward(const Lease& lease, const NormTensors& norm, std::span<const float> x, std::span<float> y,
                    const NormStatistics& statistics);
  void norm_backward(const Lease& lease, const NormTensors& norm, std::span<const float> x,
                     const NormStatistics& statistics, std::span<const float> dy, std::span<float> dx);
  void linear_forward(const Lease& lease, const LinearTensors& linear, std::span<const float> x,
                      std::span<float> y);
  void linear_backward(const Lease& lease, const LinearTensors& linear, std::span<const float> x,
                       std::span<const float> dy, std::span<float> dx, Ops::InputGradient existing);
  // The weight in its type; one that is coded is made in the caller's frame.
  ParameterView weight_of(const Lease& lease, const LinearTensors& linear);
  AdapterShape adapter_shape(const LinearTensors& linear) const;
  // Returns token ids where operations can read them; their memory belongs to the caller's frame.
  std::span<const int32_t> readable(std::span<const int32_t> ids);
  void prepare_rotation();
  void rotate(const AttentionRows<float>& rows, bool inverse);

  uint64_t tokens_count() const { return batch.tokens.size(); }
  uint64_t first_position() const { return cache == nullptr ? 0 : cache->tokens(); }
  bool is_llama() const { return config.family != ModelFamily::gpt2; }
  std::span<float> allocate(uint64_t width) { return arena.allocate<float>(tokens_count() * width); }
  NormStatistics allocate_statistics(uint64_t rows) {
    return {is_llama() ? std::span<float>() : arena.allocate<float>(rows), arena.allocate<float>(rows)};
  }
  VocabularyShape head_part(uint32_t part, uint64_t rows) const {
    return {rows, config.width, tensors.head.first_row(part), tensors.head.rows_of(part)};
  }
  AttentionShape attention_shape() const {
    AttentionShape shape{batch.batch, batch.sequence, config.heads, config.key_value_heads, config.head_size};
    if (cache == nullptr) return shape;
    shape.past = cache->tokens();
    shape.spare = cache->shape().capacity - shape.key_tokens();
    return shape;
  }
  OperationKey key(uint32_t layer, std::string_view operation, Phase phase) const {
    return OperationKey::of_layer(prefix, layer, operation, phase.suffix);
  }

  ParameterView view(const Lease& lease, TensorId tensor) const {
    return {lease.parameter<std::byte>(tensor), tensors.type(tensor)};
  }
  // The target has no address if the tensor is not trained.
  GradientTarget target(const Lease& lease, TensorId tensor) const {
    return {tensors.trainable(tensor) ? lease.gradient(tensor) : GradientView{}, tensors.type(tensor)};
  }

  RotaryTable rotary_;
};

}  // namespace terrace::decoder
