// The computation of a GPT-2: one micro-batch forward and backward, and evaluation.
//
// A layer is four leases in each direction: {norm, qkv}, {attention projection}, {norm, hidden}, {output}.
// Layers nest: a layer runs forward, then everything above it runs forward and backward, then the layer
// itself runs backward, so that the last-in first-out arena holds exactly what is still needed. With
// checkpointing a layer forgets everything but its input in between and computes it again; the bits are the
// same because operations have no other input.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/runtime/models/gpt2.h>
#include <terrace/runtime/models/internal/gpt2_tensors.h>

namespace terrace {
namespace {

using gpt2::LayerTensor;
using gpt2::OperationKey;

// How the operations of a pass use their tensors, and the end of their keys.
struct Phase {
  UseKind kind;
  std::string_view suffix;
};
constexpr Phase kForward{UseKind::forward, "/forward"};
constexpr Phase kRecompute{UseKind::forward, "/recompute"};
constexpr Phase kBackward{UseKind::backward, "/backward"};
constexpr Phase kInference{UseKind::inference, "/inference"};

// What a layer's backward pass needs besides the layer's input.
struct LayerActivations {
  NormStatistics statistics1;
  NormStatistics statistics2;
  std::span<float> norm1;
  std::span<float> qkv;
  std::span<float> log_sums;
  std::span<float> attention;
  std::span<float> middle;  // the residual stream between attention and the feed-forward part
  std::span<float> norm2;
  std::span<float> hidden;
  std::span<float> activated;
};

class Gpt2Pass {
 public:
  Gpt2Pass(const ModelConfig& config, const ModelOptions& options, const HostOps& ops,
           ParameterAccess& access, StackArena& arena, const MicroBatch& batch, std::string_view prefix)
      : config_(config),
        options_(options),
        ops_(ops),
        access_(access),
        arena_(arena),
        batch_(batch),
        prefix_(prefix) {}

  float train(float loss_scale);
  float evaluate();

 private:
  float layers_from(uint32_t layer, std::span<const float> x, std::span<float> dx, float loss_scale);
  float head(std::span<const float> x, std::span<float> dx, float loss_scale);
  float head_forward(std::span<const float> x, std::span<float> normalised, const NormStatistics& statistics,
                     std::span<float> log_sums, Phase phase);

  void embed(std::span<float> x, Phase phase);
  void embed_backward(std::span<const float> dx);
  void layer_forward(uint32_t layer, std::span<const float> x, const LayerActivations& kept, Phase phase);
  void layer_output(uint32_t layer, const LayerActivations& kept, std::span<float> y, Phase phase);
  void layer_backward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                      std::span<float> dx);
  void output_backward(uint32_t layer, const LayerActivations& kept, std::span<float> dx);
  void attention_backward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                          std::span<float> dx);

  uint64_t tokens() const { return batch_.tokens.size(); }
  RowShape stream_shape() const { return {tokens(), config_.width}; }
  LinearShape linear_shape(uint64_t inputs, uint64_t outputs) const { return {tokens(), inputs, outputs}; }
  EmbeddingShape embedding_shape() const {
    return {batch_.batch, batch_.sequence, config_.width, config_.vocabulary, config_.context};
  }
  AttentionShape attention_shape() const {
    return {batch_.batch, batch_.sequence, config_.heads, config_.width};
  }
  VocabularyShape vocabulary_shape() const { return {tokens(), config_.width, config_.vocabulary}; }

  std::span<float> allocate(uint64_t width) { return arena_.allocate<float>(tokens() * width); }
  NormStatistics allocate_statistics() {
    const std::span<float> means = allocate(1);
    return {means, allocate(1)};
  }
  LayerActivations allocate_layer();

  ParameterView view(const Lease& lease, TensorId tensor) const {
    return {lease.parameter<std::byte>(tensor), options_.type};
  }
  GradientTarget target(const Lease& lease, TensorId tensor) const {
    return {lease.gradient(tensor), options_.type};
  }

  const ModelConfig& config_;
  const ModelOptions& options_;
  const HostOps& ops_;
  ParameterAccess& access_;
  StackArena& arena_;
  const MicroBatch& batch_;
  std::string_view prefix_;
};

LayerActivations Gpt2Pass::allocate_layer() {
  const uint64_t width = config_.width;
  LayerActivations kept;
  kept.statistics1 = allocate_statistics();
  kept.statistics2 = allocate_statistics();
  kept.norm1 = allocate(width);
  kept.qkv = allocate(3 * width);
  kept.log_sums = allocate(config_.heads);
  kept.attention = allocate(width);
  kept.middle = allocate(width);
  kept.norm2 = allocate(width);
  kept.hidden = allocate(config_.hidden);
  kept.activated = allocate(config_.hidden);
  return kept;
}

void Gpt2Pass::embed(std::span<float> x, Phase phase) {
  const std::array tensors = {gpt2::kTokenTable, gpt2::kPositionTable};
  const Lease lease(access_, OperationKey(prefix_, "embedding", phase.suffix), tensors, phase.kind);
  ops_.embedding_forward(embedding_shape(), batch_.tokens, view(lease, tensors[0]), view(lease, tensors[1]),
                         x, arena_);
}

void Gpt2Pass::embed_backward(std::span<const float> dx) {
  const std::array tensors = {gpt2::kTokenTable, gpt2::kPositionTable};
  const Lease lease(access_, OperationKey(prefix_, "embedding", kBackward.suffix), tensors, kBackward.kind);
  ops_.embedding_backward(embedding_shape(), batch_.tokens, dx, target(lease, tensors[0]),
                          target(lease, tensors[1]), arena_);
}

// Everything of a layer but its output projection.
void Gpt2Pass::layer_forward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                             Phase phase) {
  const uint64_t width = config_.width;
  const auto id = [layer](LayerTensor tensor) { return gpt2::layer_tensor(layer, tensor); };
  {
    const std::array tensors = {id(LayerTensor::norm1_weight), id(LayerTensor::norm1_bias),
                                id(LayerTensor::qkv_weight), id(LayerTensor::qkv_bias)};
    const Lease lease(access_, OperationKey(prefix_, layer, ".attn.qkv", phase.suffix), tensors, phase.kind);
    ops_.layer_norm_forward(stream_shape(), x, view(lease, tensors[0]), view(lease, tensors[1]), kept.norm1,
                            kept.statistics1, arena_);
    ops_.linear_forward(linear_shape(width, 3 * width), kept.norm1, view(lease, tensors[2]),
                        view(lease, tensors[3]), kept.qkv, arena_);
  }
  ops_.attention_forward(attention_shape(), kept.qkv, kept.attention, kept.log_sums, arena_);
  {
    const std::array tensors = {id(LayerTensor::attention_weight), id(LayerTensor::attention_bias)};
    const Lease lease(access_, OperationKey(prefix_, layer, ".attn.proj", phase.suffix), tensors, phase.kind);
    ops_.linear_forward(linear_shape(width, width), kept.attention, view(lease, tensors[0]),
                        view(lease, tensors[1]), kept.middle, arena_);
  }
  ops_.add(x, kept.middle);
  {
    const std::array tensors = {id(LayerTensor::norm2_weight), id(LayerTensor::norm2_bias),
                                id(LayerTensor::hidden_weight), id(LayerTensor::hidden_bias)};
    const Lease lease(access_, OperationKey(prefix_, layer, ".mlp.fc", phase.suffix), tensors, phase.kind);
    ops_.layer_norm_forward(stream_shape(), kept.middle, view(lease, tensors[0]), view(lease, tensors[1]),
                            kept.norm2, kept.statistics2, arena_);
    ops_.linear_forward(linear_shape(width, config_.hidden), kept.norm2, view(lease, tensors[2]),
                        view(lease, tensors[3]), kept.hidden, arena_);
  }
  ops_.gelu_forward(kept.hidden, kept.activated);
}

// `y` may be the layer's input: it is no longer read.
void Gpt2Pass::layer_output(uint32_t layer, const LayerActivations& kept, std::span<float> y, Phase phase) {
  const std::array tensors = {gpt2::layer_tensor(layer, LayerTensor::output_weight),
                              gpt2::layer_tensor(layer, LayerTensor::output_bias)};
  {
    const Lease lease(access_, OperationKey(prefix_, layer, ".mlp.proj", phase.suffix), tensors, phase.kind);
    ops_.linear_forward(linear_shape(config_.hidden, config_.width), kept.activated, view(lease, tensors[0]),
                        view(lease, tensors[1]), y, arena_);
  }
  ops_.add(kept.middle, y);
}

// dx is the gradient of the layer's output and becomes that of its input.
void Gpt2Pass::layer_backward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                              std::span<float> dx) {
  output_backward(layer, kept, dx);
  attention_backward(layer, x, kept, dx);
}

void Gpt2Pass::output_backward(uint32_t layer, const LayerActivations& kept, std::span<float> dx) {
  const uint64_t width = config_.width;
  const auto id = [layer](LayerTensor tensor) { return gpt2::layer_tensor(layer, tensor); };
  const StackArena::Frame frame(arena_);
  const std::span<float> dhidden = allocate(config_.hidden);
  {
    const std::array tensors = {id(LayerTensor::output_weight), id(LayerTensor::output_bias)};
    const Lease lease(access_, OperationKey(prefix_, layer, ".mlp.proj", kBackward.suffix), tensors,
                      kBackward.kind);
    ops_.linear_backward(linear_shape(config_.hidden, width), kept.activated, view(lease, tensors[0]), dx,
                         dhidden, target(lease, tensors[0]), target(lease, tensors[1]), arena_);
  }
  ops_.gelu_backward(kept.hidden, dhidden);
  const std::span<float> dnorm = allocate(width);
  const std::array tensors = {id(LayerTensor::norm2_weight), id(LayerTensor::norm2_bias),
                              id(LayerTensor::hidden_weight), id(LayerTensor::hidden_bias)};
  const Lease lease(access_, OperationKey(prefix_, layer, ".mlp.fc", kBackward.suffix), tensors,
                    kBackward.kind);
  ops_.linear_backward(linear_shape(width, config_.hidden), kept.norm2, view(lease, tensors[2]), dhidden,
                       dnorm, target(lease, tensors[2]), target(lease, tensors[3]), arena_);
  ops_.layer_norm_backward(stream_shape(), kept.middle, kept.statistics2, view(lease, tensors[0]), dnorm, dx,
                           target(lease, tensors[0]), target(lease, tensors[1]), arena_);
}

void Gpt2Pass::attention_backward(uint32_t layer, std::span<const float> x, const LayerActivations& kept,
                                  std::span<float> dx) {
  const uint64_t width = config_.width;
  const auto id = [layer](LayerTensor tensor) { return gpt2::layer_tensor(layer, tensor); };
  const StackArena::Frame frame(arena_);
  const std::span<float> dattention = allocate(width);
  {
    const std::array tensors = {id(LayerTensor::attention_weight), id(LayerTensor::attention_bias)};
    const Lease lease(access_, OperationKey(prefix_, layer, ".attn.proj", kBackward.suffix), tensors,
                      kBackward.kind);
    ops_.linear_backward(linear_shape(width, width), kept.attention, view(lease, tensors[0]), dx, dattention,
                         target(lease, tensors[0]), target(lease, tensors[1]), arena_);
  }
  const std::span<float> dqkv = allocate(3 * width);
  ops_.attention_backward(attention_shape(), kept.qkv, kept.attention, kept.log_sums, dattention, dqkv,
                          arena_);
  const std::span<float> dnorm = dattention;  // read for the last time above
  const std::array tensors = {id(LayerTensor::norm1_weight), id(LayerTensor::norm1_bias),
                              id(LayerTensor::qkv_weight), id(LayerTensor::qkv_bias)};
  const Lease lease(access_, OperationKey(prefix_, layer, ".attn.qkv", kBackward.suffix), tensors,
                    kBackward.kind);
  ops_.linear_backward(linear_shape(width, 3 * width), kept.norm1, view(lease, tensors[2]), dqkv, dnorm,
                       target(lease, tensors[2]), target(lease, tensors[3]), arena_);
  ops_.layer_norm_backward(stream_shape(), x, kept.statistics1, view(lease, tensors[0]), dnorm, dx,
                           target(lease, tensors[0]), target(lease, tensors[1]), arena_);
}

float Gpt2Pass::head_forward(std::span<const float> x, std::span<float> normalised,
                             const NormStatistics& statistics, std::span<float> log_sums, Phase phase) {
  const std::array tensors = {gpt2::final_norm_weight(config_.layers), gpt2::final_norm_bias(config_.layers),
                              gpt2::kTokenTable};
  const Lease lease(access_, OperationKey(prefix_, "head", phase.suffix), tensors, phase.kind);
  ops_.layer_norm_forward(stream_shape(), x, view(lease, tensors[0]), view(lease, tensors[1]), normalised,
                          statistics, arena_);
  return ops_.cross_entropy_forward(vocabulary_shape(), normalised, view(lease, tensors[2]), batch_.targets,
                                    log_sums, arena_);
}

// Forward and backward. dx becomes the gradient of x.
float Gpt2Pass::head(std::span<const float> x, std::span<float> dx, float loss_scale) {
  const StackArena::Frame frame(arena_);
  const std::span<float> normalised = allocate(config_.width);
  const NormStatistics statistics = allocate_statistics();
  const std::span<float> log_sums = allocate(1);
  const float loss = head_forward(x, normalised, statistics, log_sums, kForward);

  const std::span<float> dnormalised = allocate(config_.width);
  if (!ops_.is_dry_run()) std::fill(dx.begin(), dx.end(), 0.0f);
  const std::array tensors = {gpt2::final_norm_weight(config_.layers), gpt2::final_norm_bias(config_.layers),
                              gpt2::kTokenTable};
  const Lease lease(access_, OperationKey(prefix_, "head", kBackward.suffix), tensors, kBackward.kind);
  ops_.cross_entropy_backward(vocabulary_shape(), normalised, view(lease, tensors[2]), batch_.targets,
                              log_sums, loss_scale, dnormalised, target(lease, tensors[2]), arena_);
  ops_.layer_norm_backward(stream_shape(), x, statistics, view(lease, tensors[0]), dnormalised, dx,
                           target(lease, tensors[0]), target(lease, tensors[1]), arena_);
  return loss;
}

// Runs `layer` and everything above it forward and backward. dx becomes the gradient of the layer's input x.
float Gpt2Pass::layers_from(uint32_t layer, std::span<const float> x, std::span<float> dx, float loss_scale) {
  if (layer == config_.layers) return head(x, dx, loss_scale);
  const StackArena::Frame frame(arena_);
  LayerActivations kept;
  if (!options_.checkpoint_activations) kept = allocate_layer();
  float loss;
  {
    const StackArena::Frame output_frame(arena_);
    const std::span<float> y = allocate(config_.width);
    {
      const StackArena::Frame forgotten(arena_);
      if (options_.checkpoint_activations) kept = allocate_layer();
      layer_forward(layer, x, kept, kForward);
      layer_output(layer, kept, y, kForward);
    }
    loss = layers_from(layer + 1, y, dx, loss_scale);
  }
  if (options_.checkpoint_activations) {
    kept = allocate_layer();
    layer_forward(layer, x, kept, kRecompute);
  }
  layer_backward(layer, x, kept, dx);
  return loss;
}

float Gpt2Pass::train(float loss_scale) {
  const StackArena::Frame frame(arena_);
  const std::span<float> x = allocate(config_.width);
  const std::span<float> dx = allocate(config_.width);
  embed(x, kForward);
  const float loss = layers_from(0, x, dx, loss_scale);
  embed_backward(dx);
  return loss;
}

float Gpt2Pass::evaluate() {
  const StackArena::Frame frame(arena_);
  const std::span<float> x = allocate(config_.width);
  embed(x, kInference);
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    const StackArena::Frame forgotten(arena_);
    const LayerActivations kept = allocate_layer();
    layer_forward(layer, x, kept, kInference);
    layer_output(layer, kept, x, kInference);
  }
  const std::span<float> normalised = allocate(config_.width);
  const NormStatistics statistics = allocate_statistics();
  return head_forward(x, normalised, statistics, allocate(1), kInference);
}

void check_ids(const ModelConfig& config, std::span<const int32_t> ids) {
  const auto wrong = std::find_if(ids.begin(), ids.end(), [&](int32_t id) {
    return id < 0 || static_cast<uint32_t>(id) >= config.vocabulary;
  });
  if (wrong == ids.end()) return;
  throw Error(ErrorKind::config,
              {"cannot look up a token", fmt::format("token {}", *wrong),
               fmt::format("the model's vocabulary has {} tokens", config.vocabulary),
               "train on data of this vocabulary, or set the model's vocabulary to the data's"});
}

void check_batch(const ModelConfig& config, const MicroBatch& batch, bool dry_run) {
  TERRACE_ASSERT(batch.tokens.size() == uint64_t{batch.batch} * batch.sequence && !batch.tokens.empty() &&
                     batch.targets.size() == batch.tokens.size(),
                 fmt::format("a micro-batch of {} x {} has {} tokens and {} targets", batch.batch,
                             batch.sequence, batch.tokens.size(), batch.targets.size()));
  if (batch.sequence > config.context) {
    throw Error(ErrorKind::config,
                {"cannot run a micro-batch", fmt::format("sequence of {} tokens", batch.sequence),
                 fmt::format("the model's context is {} tokens", config.context),
                 "use shorter sequences, or a model with a longer context"});
  }
  if (dry_run) return;
  check_ids(config, batch.tokens);
  check_ids(config, batch.targets);
}

}  // namespace

float Gpt2::train_micro_batch(const HostOps& ops, ParameterAccess& access, StackArena& arena,
                              const MicroBatch& batch, float loss_scale,
                              std::string_view operation_prefix) const {
  check_batch(config_, batch, ops.is_dry_run());
  return Gpt2Pass(config_, options_, ops, access, arena, batch, operation_prefix).train(loss_scale);
}

float Gpt2::evaluate(const HostOps& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                     std::string_view operation_prefix) const {
  check_batch(config_, batch, ops.is_dry_run());
  return Gpt2Pass(config_, options_, ops, access, arena, batch, operation_prefix).evaluate();
}

}  // namespace terrace
