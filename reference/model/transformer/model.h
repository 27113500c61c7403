// Model: the trained object as the trainer sees it. It has named tensors, their first values, and a
// micro-batch forward and backward.
//
// A model reaches parameters and gradients through ParameterAccess alone and does not know where they live. A
// lease covers one small group of tensors, so that a tight device budget suffices. The same code runs dry
// (Ops in a dry run, a dry StackArena): it then makes the same uses and the same requests for memory, and
// touches neither tokens nor parameters. A model is immutable and thread-safe; one run of it is not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/memory/host/stack_arena.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/lease/activation_store.h>
#include <terrace/offload/lease/parameter_access.h>
#include <terrace/reference/model/compute/ops.h>
#include <terrace/reference/model/transformer/adapter.h>
#include <terrace/reference/model/transformer/key_value_cache.h>
#include <terrace/reference/model/transformer/model_config.h>

namespace terrace {

// How a model is trained. None of it changes the meaning of its weights.
struct ModelOptions {
  DataType type = DataType::bf16;  // of parameters and gradients
  // Type of the weights and biases of norms and of their gradients; unset: as `type`.
  std::optional<DataType> norm_type = {};
  uint64_t seed = 42;  // of the first values
  // True: keep only the inputs of checkpoint_count segments of layers, and compute the rest again in
  // backward. A checkpoint_count of 0 makes one segment per layer.
  bool checkpoint_activations = true;
  uint32_t checkpoint_count = 0;
  std::vector<std::string> frozen = {};  // patterns (with *) over weight names that are not trained
  std::optional<LoraOptions> lora = {};  // train adapters alone
  // As what the frozen weights of linear layers are kept (optimizer_cpu/weight_codes.h); needs adapters. A
  // tensor has the words of one, as fp32 that nobody computes with.
  WeightCode quantize_base = WeightCode::none;
  // A vocabulary table is several tensors of about this many elements, so that no operation needs all of it
  // at once. No bit depends on the value.
  uint64_t table_part_elements = 8 * 1024 * 1024;
  // For tied embeddings. True: compute the head's gradient of the token table together with the embedding's,
  // at the end of the backward pass, and the logits once more. Each part's gradient is then complete at once
  // and need not stay on the device through the whole backward pass. No bit depends on the value.
  bool late_head_gradient = false;
};

// Token ids, sample after sample; targets[i] is the token that follows tokens[i]. The spans are views; in a
// dry run their addresses may be null.
struct MicroBatch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> targets;
  uint32_t batch = 0;
  uint32_t sequence = 0;
};

// One of several micro-batches that are trained together.
struct MicroBatchRun {
  MicroBatch batch;
  std::string_view operation_prefix;
  float loss = 0;  // the mean over its tokens, unscaled; 0 after a dry run
};

// Where a stage of a pipeline is in its step, which is the moment at which a message comes or goes.
enum class StageMoment : uint8_t { forward_is_over, backward_begins, backward_is_over };

// A tensor as weight files have it, row-major. Its parts lie one after the other along dimension 0.
struct WeightSpec {
  std::string name;  // as save_pretrained writes it: "transformer.h.0.attn.c_attn.weight"
  std::vector<uint64_t> shape;
  std::vector<TensorId> parts;
  CodedWeight coded = {};  // if its one part has words of codes
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const ModelOptions& options() const = 0;
  // Returns every tensor in the order of TensorId, which is about the order of use. Its group is kDecayGroup
  // or kNoDecayGroup (runtime/config/parameter_groups.h).
  virtual std::vector<TensorSpec> tensors() const = 0;
  // Returns the tensors as weight files have them. Each TensorId but those of adapters is a part of exactly
  // one weight.
  virtual std::vector<WeightSpec> weights() const = 0;
  // Returns the adapters in the order of their tensors; none without ModelOptions::lora.
  virtual std::vector<AdapterSpec> adapters() const = 0;

  // Computes the first values of elements [first_element, first_element + out.size()) of a tensor: normal
  // with init_std, biases 0, norms 1. An adapter's A is uniform below 1 / sqrt(inputs) as in PEFT and its B
  // is 0, so that it changes nothing at first. Of a coded weight these are words. The values do not depend on
  // the cuts of a tensor. Thread-safe.
  virtual void initial_values(TensorId tensor, uint64_t first_element, std::span<float> out) const = 0;

  // Runs one micro-batch forward and backward: gradients of loss_scale * the mean loss arrive through
  // `access`. Returns the mean loss over tokens, unscaled. Operation keys are for example
  // "<operation_prefix>h.3.mlp.fc/forward". Throws Error(config) for a token outside the vocabulary or a
  // sequence longer than the context.
  //
  // With `store`, the inputs of checkpointed segments go there instead of staying in the arena.
  virtual float train_micro_batch(const Ops& ops, ParameterAccess& access, StackArena& arena,
                                  const MicroBatch& batch, float loss_scale,
                                  std::string_view operation_prefix,
                                  ActivationStore* store = nullptr) const = 0;
  // Runs several micro-batches of one shape together, layer by layer: an operation runs for all of them, in
  // their order, before the next one, so that its parameters are needed once and not once for each. Bits and
  // keys are those of train_micro_batch(); `access` is told which micro-batch each use belongs to. The inputs
  // of segments are kept for all micro-batches, so layers are computed again whatever the options say. Tied
  // embeddings that are trained need ModelOptions::late_head_gradient.
  virtual void train_layer_major(const Ops& ops, ParameterAccess& access, StackArena& arena,
                                 std::span<MicroBatchRun> runs, float loss_scale,
                                 ActivationStore* store = nullptr) const = 0;
  // Runs the micro-batches of a step dry as a stage of a pipeline does (1F1B): it goes forward with as many
  // as there are stages behind it, and from then on backward after each forward pass. Keys are those of
  // train_micro_batch(). What it gets from other stages has no values. Only for a part of a model
  // (ModelConfig::part), and with dry `ops`.
  virtual void train_stage(const Ops& ops, ParameterAccess& access, StackArena& arena,
                           std::span<const MicroBatchRun> runs,
                           FunctionRef<void(StageMoment moment, uint32_t micro_batch)> at,
                           ActivationStore* store = nullptr) const = 0;
  // Returns the mean loss over tokens. Uses are inference uses, "<operation_prefix>h.3.mlp.fc/inference".
  // Errors are those of train_micro_batch().
  virtual float evaluate(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                         std::string_view operation_prefix) const = 0;

  // Writes the logits of the token after the last of each sequence, [batch, vocabulary], to `logits`. Targets
  // are not read. Uses and errors are those of evaluate().
  //
  // With `cache`, from make_cache(), `batch` has the tokens after those that the cache holds, for no more
  // samples, and the cache holds them too afterwards. HostOps give the logits that the whole sequences have
  // without a cache, bit for bit. If it throws, the cache holds what it held before.
  virtual void next_token_logits(const Ops& ops, ParameterAccess& access, StackArena& arena,
                                 const MicroBatch& batch, std::span<float> logits,
                                 std::string_view operation_prefix, KeyValueCache* cache = nullptr) const = 0;
  // Returns how many tokens of a sequence a cache can hold: the context, or less where the keys of a longer
  // sequence depend on its length (RopeScalingKind::dynamic).
  uint32_t cacheable_tokens() const;
  // Returns an empty cache for `batch` sequences of at most `tokens` tokens, no more than cacheable_tokens().
  // Its memory is of the arena, in the caller's frame.
  KeyValueCache make_cache(StackArena& arena, uint32_t batch, uint32_t tokens) const;

  // By TensorId, the numbers that operations compute with: of a coded weight those that its words stand for.
  std::vector<uint64_t> element_counts() const;
  uint64_t parameter_count() const;  // their sum
  // Returns "gpt2 7 layers x 512, 8 heads, context 256, vocabulary 256, bf16".
  std::string description() const;
};

// Throws Error(config) when the sizes do not fit together, a pattern fits no weight or nothing is left to
// train.
std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelOptions& options);

}  // namespace terrace
