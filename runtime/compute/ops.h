// HostOps: the operations of a transformer, forward and backward, on the host's threads.
//
// Activations are row-major fp32, a row per token. Parameters and gradients have the type of their tensor; a
// gradient's whole contribution is computed in fp32 and lands once, value = round(value + contribution). Work
// is cut by shape alone and every reduction has a fixed order, so results do not depend on the number of
// threads. A gradient without an address is of a tensor that is not trained, and is not computed. In a dry
// run an operation takes its scratch memory from the arena and touches nothing. Nothing here knows tiers,
// leases or models, and nothing allocates memory but from the arena. Every method is called from one thread.
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

// A part of a token table: the rows of the tokens [first_row, first_row + rows).
struct EmbeddingShape {
  uint64_t tokens = 0;
  uint64_t width = 0;
  uint64_t first_row = 0;
  uint64_t rows = 0;
};

struct PositionShape {
  uint64_t batch = 0;
  uint64_t sequence = 0;  // tokens of one sample; at most `context`
  uint64_t width = 0;
  uint64_t context = 0;  // rows of the position table
};

// The places of a micro-batch's tokens grouped by token id, ascending within an id: those of `id` end at
// ends[id].
struct TokenOrder {
  std::span<uint32_t> ends;    // vocabulary + 1
  std::span<uint32_t> places;  // tokens
};

struct RowShape {
  uint64_t rows = 0;
  uint64_t width = 0;
};

struct NormShape {
  uint64_t rows = 0;
  uint64_t width = 0;
  float epsilon = 1e-5f;
};

struct LinearShape {
  uint64_t rows = 0;
  uint64_t inputs = 0;
  uint64_t outputs = 0;
  bool outputs_first = false;  // the weight is [outputs, inputs], else [inputs, outputs]
  bool biased = true;
};

// A low-rank adapter beside a linear layer; A is [rank, inputs], B is [outputs, rank].
struct AdapterShape {
  uint64_t rows = 0;
  uint64_t inputs = 0;
  uint64_t outputs = 0;
  uint64_t rank = 0;
  float scale = 1.0f;  // alpha / rank
};

// Consecutive query heads share a key-value head; with as many of both every head has its own.
struct AttentionShape {
  uint64_t batch = 0;
  uint64_t sequence = 0;
  uint64_t heads = 0;
  uint64_t key_value_heads = 0;  // divides heads
  uint64_t head_size = 0;
  uint64_t tokens() const { return batch * sequence; }
  uint64_t query_width() const { return heads * head_size; }
  uint64_t key_value_width() const { return key_value_heads * head_size; }
};

// Queries, keys and values of all tokens, a row per token, head by head; rows lie `stride` elements apart, so
// that all three may be columns of one matrix.
template <typename Float>
struct AttentionRows {
  std::span<Float> queries;
  std::span<Float> keys;
  std::span<Float> values;
  uint64_t query_stride = 0;
  uint64_t key_value_stride = 0;
};

// Rotary positions (Su et al., arXiv:2104.09864): element i of a head forms a pair with i + head_size / 2.
struct RotaryShape {
  uint64_t tokens = 0;
  uint64_t sequence = 0;
  uint64_t heads = 0;
  uint64_t head_size = 0;  // even
};

// Of every place in a sample and every pair: [sequence, head_size / 2].
struct RotaryTable {
  std::span<float> cosines;
  std::span<float> sines;
};

// A part of the vocabulary: the tokens [first_row, first_row + rows) of all. Parts come in ascending order;
// all but the last have a multiple of kLossColumns rows, so that no bit depends on how a table is cut.
struct VocabularyShape {
  static constexpr uint64_t kLossColumns = 128;
  uint64_t tokens = 0;
  uint64_t width = 0;
  uint64_t first_row = 0;
  uint64_t rows = 0;
};

// The softmax's denominator of a row of logits that come tile by tile, sum * exp(largest), and the logit of
// the row's target.
struct RunningLoss {
  float largest;
  float sum;
  float target_logit;
};

// What a norm keeps for its backward pass: a value per row. A root-mean-square norm has no means, and the
// inverse roots in the place of inverse deviations.
struct NormStatistics {
  std::span<float> means;
  std::span<float> inverse_deviations;
};

class HostOps {
 public:
  HostOps(Workers& workers, InstructionSet set, bool dry_run = false);

  bool is_dry_run() const { return dry_run_; }

  // y[place] = the table's row of tokens[place], for the places whose token is in this part of the table.
  void embedding_forward(const EmbeddingShape& shape, std::span<const int32_t> tokens, ParameterView table,
                         std::span<float> y) const;
  // Fills `order` for ids below ends.size() - 1.
  void order_tokens(std::span<const int32_t> tokens, const TokenOrder& order) const;
  void embedding_backward(const EmbeddingShape& shape, const TokenOrder& order, std::span<const float> dy,
                          const GradientTarget& gradient, StackArena& arena) const;
  // y[place] += table[place's position in its sample].
  void position_forward(const PositionShape& shape, ParameterView table, std::span<float> y,
                        StackArena& arena) const;
  void position_backward(const PositionShape& shape, std::span<const float> dy,
                         const GradientTarget& gradient, StackArena& arena) const;

  // Over each row.
  void layer_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                          ParameterView beta, std::span<float> y, const NormStatistics& statistics,
                          StackArena& arena) const;
  // dx += the gradient: the residual stream's own gradient is already there.
  void layer_norm_backward(const NormShape& shape, std::span<const float> x, const NormStatistics& statistics,
                           ParameterView gamma, std::span<const float> dy, std::span<float> dx,
                           const GradientTarget& gamma_gradient, const GradientTarget& beta_gradient,
                           StackArena& arena) const;
  // Zhang and Sennrich, arXiv:1910.07467.
  void rms_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                        std::span<float> y, const NormStatistics& statistics, StackArena& arena) const;
  // dx += the gradient.
  void rms_norm_backward(const NormShape& shape, std::span<const float> x, const NormStatistics& statistics,
                         ParameterView gamma, std::span<const float> dy, std::span<float> dx,
                         const GradientTarget& gamma_gradient, StackArena& arena) const;

  // y = x * weight + bias.
  void linear_forward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                      ParameterView bias, std::span<float> y, StackArena& arena) const;
  // What becomes of an existing dx.
  enum class InputGradient : uint8_t { overwrite, add };
  void linear_backward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                       std::span<const float> dy, std::span<float> dx, InputGradient existing,
                       const GradientTarget& weight_gradient, const GradientTarget& bias_gradient,
                       StackArena& arena) const;

  // y += scale * (x * A^T) * B^T.
  void adapter_forward(const AdapterShape& shape, std::span<const float> x, ParameterView a, ParameterView b,
                       std::span<float> y, StackArena& arena) const;
  // dx += the gradient, or is empty when nobody wants it.
  void adapter_backward(const AdapterShape& shape, std::span<const float> x, ParameterView a, ParameterView b,
                        std::span<const float> dy, std::span<float> dx, const GradientTarget& a_gradient,
                        const GradientTarget& b_gradient, StackArena& arena) const;

  // Causal attention. log_sums receives the logarithm of the softmax's denominator for each [batch, head,
  // token]. Memory: a block of kQueryBlock rows of probabilities per thread, whatever the sequence.
  static constexpr uint64_t kQueryBlock = 96;
  void attention_forward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                         std::span<float> y, std::span<float> log_sums, StackArena& arena) const;
  // `gradients` are overwritten; their strides are those of `inputs`. The probabilities are computed again
  // from queries, keys and log_sums.
  void attention_backward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                          std::span<const float> y, std::span<const float> log_sums,
                          std::span<const float> dy, const AttentionRows<float>& gradients,
                          StackArena& arena) const;

  // Turns every head of every row by the angles of its position, in place; `inverse` turns back, which is the
  // gradient's way.
  void rotate(const RotaryShape& shape, const RotaryTable& table, bool inverse, std::span<float> x) const;

  // y = silu(gate) * up (Shazeer, arXiv:2002.05202).
  void swiglu_forward(std::span<const float> gate, std::span<const float> up, std::span<float> y) const;
  // dy becomes the gradient of `gate`.
  void swiglu_backward(std::span<const float> gate, std::span<const float> up, std::span<float> dy,
                       std::span<float> dup) const;

  // In the tanh form of GPT-2.
  void gelu_forward(std::span<const float> x, std::span<float> y) const;
  // dy becomes dx.
  void gelu_backward(std::span<const float> x, std::span<float> dy) const;

  // y += x.
  void add(std::span<const float> x, std::span<float> y) const;

  // The loss is the mean over tokens of -log softmax(x * weight^T)[target]; weight is [vocabulary, width] and
  // comes in parts. Logits exist in tiles of columns; the backward pass computes them again.
  void cross_entropy_forward(const VocabularyShape& part, std::span<const float> x, ParameterView weight,
                             std::span<const int32_t> targets, std::span<RunningLoss> running,
                             StackArena& arena) const;
  // After the last part: the loss, and for each token the logarithm of its denominator. In a dry run 0.
  float cross_entropy_loss(std::span<const RunningLoss> running, std::span<float> log_sums) const;
  // The gradient of the mean loss times `loss_scale`. The first part overwrites dx and the others add to it;
  // without dx only the weight's gradient is computed.
  void cross_entropy_backward(const VocabularyShape& part, std::span<const float> x, ParameterView weight,
                              std::span<const int32_t> targets, std::span<const float> log_sums,
                              float loss_scale, std::span<float> dx, const GradientTarget& weight_gradient,
                              StackArena& arena) const;
  // The logits of this part into their columns of `logits`, whose rows are `vocabulary` long.
  void logits(const VocabularyShape& part, std::span<const float> x, ParameterView weight,
              uint64_t vocabulary, std::span<float> logits, StackArena& arena) const;

 private:
  // The values of a short parameter (a bias, a norm's weights) as fp32: where they are, or converted into the
  // arena.
  std::span<const float> as_floats(ParameterView parameter, uint64_t count, StackArena& arena) const;
  // body(first, count) for blocks of `rows` of about the same work, each row `width` elements long.
  void for_row_blocks(uint64_t rows, uint64_t width, FunctionRef<void(uint64_t, uint64_t)> body) const;
  // sums = the gradients of keys or values that the query heads of each group left apart; see
  // attention_backward.
  void add_groups(const AttentionShape& shape, std::span<const float> apart, uint64_t stride,
                  std::span<float> sums) const;
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
