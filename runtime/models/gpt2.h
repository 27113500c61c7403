// Gpt2: the GPT-2 family (Radford et al., 2019) as a straight line of operations, forward and backward.
//
// It knows which tensors there are, what their first values are, and in which order an optimizer's
// micro-batch uses them; through ParameterAccess it knows nothing of where they live. A lease covers one
// small group of tensors, so that a tight device budget suffices. The same code runs dry (HostOps in a dry
// run, a dry StackArena): then it makes the same uses and the same requests for memory, and touches neither
// tokens nor parameters.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/memory/stack_arena.h>
#include <terrace/memory/tensor.h>
#include <terrace/offload/parameter_access.h>
#include <terrace/runtime/compute/ops.h>

namespace terrace {

struct Gpt2Config {
  uint32_t layers = 12;
  uint32_t heads = 12;
  uint32_t width = 768;
  uint32_t context = 1024;  // the longest sequence
  uint32_t vocabulary = 50257;
  DataType type = DataType::bf16;
  bool checkpoint_activations = true;  // keep each layer's input only and compute the rest again in backward
  float init_std = 0.02f;
  uint64_t seed = 42;
};

// The sizes of "gpt2", "gpt2-medium", "gpt2-large" or "gpt2-xl" with their vocabulary of 50257.
// Throws Error(config) on another name.
Gpt2Config gpt2_preset(std::string_view name);

// Token ids, sample after sample; targets[i] is the token that follows tokens[i]. Views only; in a dry run
// their addresses may be null.
struct MicroBatch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> targets;
  uint32_t batch = 0;
  uint32_t sequence = 0;
};

class Gpt2 {
 public:
  // Throws Error(config) when the sizes do not fit together or the type is not fp32 or bf16.
  explicit Gpt2(const Gpt2Config& config);

  const Gpt2Config& config() const { return config_; }

  // Every tensor under its Hugging Face name, in the order of TensorId. The head shares wte.weight. Group 0
  // holds the tensors with decay (two dimensions), group 1 norms and biases.
  static constexpr uint32_t kDecayGroup = 0;
  static constexpr uint32_t kNoDecayGroup = 1;
  std::vector<TensorSpec> tensors() const;
  uint64_t parameter_count() const;

  // The first values of elements [first_element, first_element + out.size()) of a tensor: normal with
  // init_std, the residual projections with init_std / sqrt(2 * layers), biases 0, norms 1. Independent of
  // how a tensor is cut. Thread-safe.
  void initial_values(TensorId tensor, uint64_t first_element, std::span<float> out) const;

  // One micro-batch forward and backward: gradients of loss_scale * the mean loss arrive through `access`.
  // Returns the mean loss over tokens, unscaled. Operation keys are "<operation_prefix>h.3.mlp.fc/forward"
  // and the like. Throws Error(config) for a token outside the vocabulary or a sequence longer than the
  // context.
  float train_micro_batch(const HostOps& ops, ParameterAccess& access, StackArena& arena,
                          const MicroBatch& batch, float loss_scale, std::string_view operation_prefix) const;
  // The mean loss over tokens. Uses are inference uses, "<operation_prefix>h.3.mlp.fc/inference". Same
  // errors.
  float evaluate(const HostOps& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                 std::string_view operation_prefix) const;

 private:
  Gpt2Config config_;
};

}  // namespace terrace
