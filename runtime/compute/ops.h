// HostOps: the operations of a transformer, forward and backward, on the host's threads.
//
// Activations are row-major fp32, a row per token. Parameters and gradients have the type of their tensor;
// a gradient's whole contribution is computed in fp32 and lands once, value = round(value +
// contribution). Work is cut by shape alone and every reduction has a fixed order, so results do not depend
// on the number of threads. In a dry run an operation takes its scratch memory from the arena and touches
// nothing. Nothing here knows tiers, leases or models, and nothing allocates memory but from the arena. Every
// method is called from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/base/data_type.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/workers.h>
#include <terrace/memory/stack_arena.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/runtime/compute/gemm.h>

namespace terrace {

struct ParameterView {
  const std::byte* data = nullptr;
  DataType type = DataType::fp32;
};

struct EmbeddingShape {
  uint64_t batch = 0;
  uint64_t sequence = 0;  // tokens of one sample; at most `context`
  uint64_t width = 0;
  uint64_t vocabulary = 0;
  uint64_t context = 0;  // rows of the position table
  uint64_t tokens() const { return batch * sequence; }
};

struct RowShape {
  uint64_t rows = 0;
  uint64_t width = 0;
};

struct LinearShape {
  uint64_t rows = 0;
  uint64_t inputs = 0;
  uint64_t outputs = 0;
};

// A low-rank adapter beside a linear layer; A is [rank, inputs], B is [outputs, rank].
struct AdapterShape {
  uint64_t rows = 0;
  uint64_t inputs = 0;
  uint64_t outputs = 0;
  uint64_t rank = 0;
  float scale = 1.0f;  // alpha / rank
};

struct AttentionShape {
  uint64_t batch = 0;
  uint64_t sequence = 0;
  uint64_t heads = 0;
  uint64_t width = 0;  // a multiple of heads
  uint64_t tokens() const { return batch * sequence; }
};

struct VocabularyShape {
  uint64_t tokens = 0;
  uint64_t width = 0;
  uint64_t vocabulary = 0;
};

// What a norm keeps for its backward pass: a value per row.
struct NormStatistics {
  std::span<float> means;
  std::span<float> inverse_deviations;
};

class HostOps {
 public:
  HostOps(Workers& workers, InstructionSet set, bool dry_run = false);

  bool is_dry_run() const { return dry_run_; }

  // y[token] = tokens[token's id] + positions[token's place in its sample].
  void embedding_forward(const EmbeddingShape& shape, std::span<const int32_t> tokens,
                         ParameterView token_table, ParameterView position_table, std::span<float> y,
                         StackArena& arena) const;
  void embedding_backward(const EmbeddingShape& shape, std::span<const int32_t> tokens,
                          std::span<const float> dy, const GradientTarget& token_gradient,
                          const GradientTarget& position_gradient, StackArena& arena) const;

  // Over each row, epsilon 1e-5.
  void layer_norm_forward(const RowShape& shape, std::span<const float> x, ParameterView gamma,
                          ParameterView beta, std::span<float> y, const NormStatistics& statistics,
                          StackArena& arena) const;
  // dx += the gradient: the residual stream's own gradient is already there.
  void layer_norm_backward(const RowShape& shape, std::span<const float> x, const NormStatistics& statistics,
                           ParameterView gamma, std::span<const float> dy, std::span<float> dx,
                           const GradientTarget& gamma_gradient, const GradientTarget& beta_gradient,
                           StackArena& arena) const;

  // y = x * weight + bias; weight is [inputs, outputs].
  void linear_forward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                      ParameterView bias, std::span<float> y, StackArena& arena) const;
  // dx is overwritten.
  void linear_backward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                       std::span<const float> dy, std::span<float> dx, const GradientTarget& weight_gradient,
                       const GradientTarget& bias_gradient, StackArena& arena) const;

  // y += scale * (x * A^T) * B^T.
  void adapter_forward(const AdapterShape& shape, std::span<const float> x, ParameterView a, ParameterView b,
                       std::span<float> y, StackArena& arena) const;
  // dx += the gradient, or is empty when nobody wants it.
  void adapter_backward(const AdapterShape& shape, std::span<const float> x, ParameterView a, ParameterView b,
                        std::span<const float> dy, std::span<float> dx, const GradientTarget& a_gradient,
                        const GradientTarget& b_gradient, StackArena& arena) const;

  // Causal attention. A row of qkv is [queries | keys | values], each `width` long, head by head; log_sums
  // receives the logarithm of the softmax's denominator for each [batch, head, token]. Memory: a block of
  // kQueryBlock rows of probabilities per thread, whatever the sequence.
  static constexpr uint64_t kQueryBlock = 96;
  void attention_forward(const AttentionShape& shape, std::span<const float> qkv, std::span<float> y,
                         std::span<float> log_sums, StackArena& arena) const;
  // dqkv is overwritten. The probabilities are computed again from qkv and log_sums.
  void attention_backward(const AttentionShape& shape, std::span<const float> qkv, std::span<const float> y,
                          std::span<const float> log_sums, std::span<const float> dy, std::span<float> dqkv,
                          StackArena& arena) const;

  // In the tanh form of GPT-2.
  void gelu_forward(std::span<const float> x, std::span<float> y) const;
  // dy becomes dx.
  void gelu_backward(std::span<const float> x, std::span<float> dy) const;

  // y += x.
  void add(std::span<const float> x, std::span<float> y) const;

  // The mean over tokens of -log softmax(x * weight^T)[target]; weight is [vocabulary, width]. Logits exist
  // in tiles of vocabulary columns; the backward pass computes them again. log_sums: a value per token. In a
  // dry run 0.
  float cross_entropy_forward(const VocabularyShape& shape, std::span<const float> x, ParameterView weight,
                              std::span<const int32_t> targets, std::span<float> log_sums,
                              StackArena& arena) const;
  // The gradient of the mean loss times `loss_scale`. dx is overwritten.
  void cross_entropy_backward(const VocabularyShape& shape, std::span<const float> x, ParameterView weight,
                              std::span<const int32_t> targets, std::span<const float> log_sums,
                              float loss_scale, std::span<float> dx, const GradientTarget& weight_gradient,
                              StackArena& arena) const;

 private:
  // The values of a short parameter (a bias, a norm's weights) as fp32: where they are, or converted into the
  // arena.
  std::span<const float> as_floats(ParameterView parameter, uint64_t count, StackArena& arena) const;
  // body(first, count) for blocks of `rows` of about the same work, each row `width` elements long.
  void for_row_blocks(uint64_t rows, uint64_t width, FunctionRef<void(uint64_t, uint64_t)> body) const;
  void land(const float* values, const GradientTarget& target, uint64_t first_element, uint64_t count) const;
  // down = scale * x * A^T.
  void adapter_down(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                    std::span<float> down, const ThreadScratch& scratch) const;
  void scale(float factor, std::span<float> values) const;
  // The gradient of a bias: the sums of dy's columns.
  void land_column_sums(const RowShape& shape, const float* dy, const GradientTarget& target) const;

  Workers& workers_;
  const compute::Kernels& kernels_;
  Products products_;
  bool dry_run_;
};

}  // namespace terrace
