// Ops: the operations of a transformer, forward and backward, wherever they are computed. HostOps
// (host_ops.h) runs them on the host's threads, CudaOps on a GPU.
//
// Activations are row-major fp32, a row per token. Parameters and gradients have the type of their tensor; a
// gradient's whole contribution is computed in fp32 and lands once, value = round(value + contribution). An
// implementation may round the other operand of a product with a parameter to the parameter's type; sums are
// fp32. Work is cut by shape alone and every reduction has a fixed order. A gradient without an address
// belongs to a tensor that is not trained; it is not computed. In a dry run an operation takes its scratch
// memory from the arena and touches nothing. Nothing here knows tiers, leases or models, and nothing
// allocates memory but from the arena. Every method is called from one thread.
//
// Parameters, gradients, activations and the arena lie in the memory of the device, which the host may be
// unable to reach. Operations may be queued there: they run in the order of their calls, but later. The host
// gives values to operations and gets values from them only through the methods of the first group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/base/data_type.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/host/stack_arena.h>
#include <terrace/optimizer_cpu/weight_codes.h>
#include <terrace/reference/model/compute/gradient_products.h>

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
  uint64_t sequence = 0;  // tokens of one sample; first + sequence is at most `context`
  uint64_t width = 0;
  uint64_t context = 0;  // rows of the position table
  uint64_t first = 0;    // the position of each sample's first token; 0 in a backward pass
};

// The places of a micro-batch's tokens grouped by token id, ascending within an id. The places of `id` end at
// ends[id].
struct TokenOrder {
  std::span<uint32_t> ends;    // vocabulary + 1
  std::span<uint32_t> places;  // tokens
};

struct RowShape {
  uint64_t rows = 0;
  uint64_t width = 0;
};

// Rows of two matrices whose rows lie `stride` elements apart.
struct RowCopyShape {
  uint64_t rows = 0;
  uint64_t width = 0;
  uint64_t from_stride = 0;
  uint64_t to_stride = 0;
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

// Consecutive query heads share a key-value head; if there are as many of both, every head has its own.
struct AttentionShape {
  uint64_t batch = 0;
  uint64_t sequence = 0;
  uint64_t heads = 0;
  uint64_t key_value_heads = 0;  // divides heads
  uint64_t head_size = 0;
  // Keys and values of each sample before its first query, and rows after its last that nobody reads; neither
  // in a backward pass.
  uint64_t past = 0;
  uint64_t spare = 0;
  uint64_t tokens() const { return batch * sequence; }
  uint64_t key_tokens() const { return past + sequence; }     // of a sample
  uint64_t key_rows() const { return key_tokens() + spare; }  // from sample to sample
  uint64_t query_width() const { return heads * head_size; }
  uint64_t key_value_width() const { return key_value_heads * head_size; }
};

// Queries, keys and values of all tokens, a row per token, head by head; a sample has key_rows() of keys and
// values. Rows lie `stride` elements apart, so that all three may be columns of one matrix.
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

// The cosine and sine of every place in a sample and every pair: [sequence, head_size / 2]. The first place
// has the position of the sample's first token.
struct RotaryTable {
  std::span<float> cosines;
  std::span<float> sines;
};

// A part of the vocabulary: the tokens [first_row, first_row + rows). Parts come in ascending order; all but
// the last have a multiple of kLossColumns rows, so that no bit depends on the cuts.
struct VocabularyShape {
  static constexpr uint64_t kLossColumns = 128;
  uint64_t tokens = 0;
  uint64_t width = 0;
  uint64_t first_row = 0;
  uint64_t rows = 0;
};

// The loss of a row of logits that come tile by tile: the softmax's denominator, sum * exp(largest), and the
// logit of the row's target.
struct RunningLoss {
  float largest;
  float sum;
  float target_logit;
};

// The values that a norm keeps for its backward pass, one per row. A root-mean-square norm has no means and
// keeps inverse roots in place of inverse deviations.
struct NormStatistics {
  std::span<float> means;
  std::span<float> inverse_deviations;
};

class Ops {
 public:
  virtual ~Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;

  bool is_dry_run() const { return dry_run_; }

  // --- Between the host and the device ---
  // memory_for_ids() takes memory of the arena for token ids, which send_ids() fills; it is empty where
  // operations read the host's ids. `ids` may be changed when send_ids() returns.
  virtual std::span<int32_t> memory_for_ids(uint64_t count, StackArena& arena) const = 0;
  virtual void send_ids(std::span<const int32_t> ids, std::span<int32_t> memory) const = 0;
  // Fills the table with the values that `fill` computes in host memory: a table of this size, and memory for
  // one frequency per pair of a head (`pairs`).
  using RotaryFill = FunctionRef<void(const RotaryTable& table, std::span<float> frequencies)>;
  virtual void fill_rotary(const RotaryTable& table, uint64_t pairs, RotaryFill fill,
                           StackArena& arena) const = 0;
  // memory_for_results() returns the memory in which operations leave numbers for the host: `wanted` itself,
  // or as much of the arena, from where fetch() brings them. The numbers are in `wanted` when finish()
  // returns; `wanted` must live until then.
  virtual std::span<float> memory_for_results(std::span<float> wanted, StackArena& arena) const = 0;
  virtual void fetch(std::span<const float> results, std::span<float> wanted) const = 0;
  // Waits for everything that is queued. Throws Error(device) when an operation failed.
  virtual void finish() const = 0;
  // Drops the results that fetch() has not brought yet.
  virtual void forget_results() const noexcept = 0;

  // --- Moving numbers ---
  // y = x; the two do not overlap.
  virtual void copy(std::span<const float> x, std::span<float> y) const = 0;
  virtual void copy_rows(const RowCopyShape& shape, std::span<const float> x, std::span<float> y) const = 0;
  virtual void set_zero(std::span<float> x) const = 0;

  // --- The operations ---
  // y[place] = the table's row of tokens[place], for places whose token is in this part of the table.
  virtual void embedding_forward(const EmbeddingShape& shape, std::span<const int32_t> tokens,
                                 ParameterView table, std::span<float> y) const = 0;
  // Fills `order` for ids below ends.size() - 1.
  virtual void order_tokens(std::span<const int32_t> tokens, const TokenOrder& order) const = 0;
  virtual void embedding_backward(const EmbeddingShape& shape, const TokenOrder& order,
                                  std::span<const float> dy, const GradientTarget& gradient,
                                  StackArena& arena) const = 0;
  // y[place] += table[place's position in its sample].
  virtual void position_forward(const PositionShape& shape, ParameterView table, std::span<float> y,
                                StackArena& arena) const = 0;
  virtual void position_backward(const PositionShape& shape, std::span<const float> dy,
                                 const GradientTarget& gradient, StackArena& arena) const = 0;

  // Layer norm of each row.
  virtual void layer_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                                  ParameterView beta, std::span<float> y, const NormStatistics& statistics,
                                  StackArena& arena) const = 0;
  // dx += the gradient: the residual stream's own gradient is already there.
  virtual void layer_norm_backward(const NormShape& shape, std::span<const float> x,
                                   const NormStatistics& statistics, ParameterView gamma,
                                   std::span<const float> dy, std::span<float> dx,
                                   const GradientTarget& gamma_gradient, const GradientTarget& beta_gradient,
                                   StackArena& arena) const = 0;
  // Root-mean-square norm of each row (Zhang and Sennrich, arXiv:1910.07467).
  virtual void rms_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                                std::span<float> y, const NormStatistics& statistics,
                                StackArena& arena) const = 0;
  // dx += the gradient.
  virtual void rms_norm_backward(const NormShape& shape, std::span<const float> x,
                                 const NormStatistics& statistics, ParameterView gamma,
                                 std::span<const float> dy, std::span<float> dx,
                                 const GradientTarget& gamma_gradient, StackArena& arena) const = 0;

  // Makes a weight of its words, in memory of the arena.
  virtual ParameterView decode_weight(const CodedWeight& weight, const std::byte* words,
                                      StackArena& arena) const = 0;

  // y = x * weight + bias.
  virtual void linear_forward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                              ParameterView bias, std::span<float> y, StackArena& arena) const = 0;
  // What linear_backward() does with an existing dx.
  enum class InputGradient : uint8_t { overwrite, add };
  virtual void linear_backward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                               std::span<const float> dy, std::span<float> dx, InputGradient existing,
                               const GradientTarget& weight_gradient, const GradientTarget& bias_gradient,
                               StackArena& arena) const = 0;

  // y += scale * (x * A^T) * B^T.
  virtual void adapter_forward(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                               ParameterView b, std::span<float> y, StackArena& arena) const = 0;
  // dx += the gradient; dx may be empty if it is not needed.
  virtual void adapter_backward(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                                ParameterView b, std::span<const float> dy, std::span<float> dx,
                                const GradientTarget& a_gradient, const GradientTarget& b_gradient,
                                StackArena& arena) const = 0;

  // Causal attention. log_sums receives the logarithm of the softmax's denominator for each [batch, head,
  // token].
  virtual void attention_forward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                 std::span<float> y, std::span<float> log_sums, StackArena& arena) const = 0;
  // `gradients` are overwritten; their strides are those of `inputs`. The probabilities are computed again
  // from queries, keys and log_sums.
  virtual void attention_backward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                  std::span<const float> y, std::span<const float> log_sums,
                                  std::span<const float> dy, const AttentionRows<float>& gradients,
                                  StackArena& arena) const = 0;

  // Turns every head of every row by the angles of its position, in place. `inverse` turns back, as the
  // gradient does.
  virtual void rotate(const RotaryShape& shape, const RotaryTable& table, bool inverse,
                      std::span<float> x) const = 0;

  // y = silu(gate) * up (Shazeer, arXiv:2002.05202).
  virtual void swiglu_forward(std::span<const float> gate, std::span<const float> up,
                              std::span<float> y) const = 0;
  // dy becomes the gradient of `gate`.
  virtual void swiglu_backward(std::span<const float> gate, std::span<const float> up, std::span<float> dy,
                               std::span<float> dup) const = 0;

  // GELU in the tanh form of GPT-2.
  virtual void gelu_forward(std::span<const float> x, std::span<float> y) const = 0;
  // dy becomes dx.
  virtual void gelu_backward(std::span<const float> x, std::span<float> dy) const = 0;

  // y += x.
  virtual void add(std::span<const float> x, std::span<float> y) const = 0;

  // The loss is the mean over tokens of -log softmax(x * weight^T)[target]; weight is [vocabulary, width] and
  // comes in parts. Logits exist in tiles of columns; the backward pass computes them again.
  virtual void cross_entropy_forward(const VocabularyShape& part, std::span<const float> x,
                                     ParameterView weight, std::span<const int32_t> targets,
                                     std::span<RunningLoss> running, StackArena& arena) const = 0;
  // Call after the last part: computes the loss, into memory_for_results(), and for each token the logarithm
  // of its denominator.
  virtual void cross_entropy_loss(std::span<const RunningLoss> running, std::span<float> log_sums,
                                  std::span<float, 1> loss) const = 0;
  // Computes the gradient of the mean loss times `loss_scale`. The first part overwrites dx and the others
  // add to it; without dx only the weight's gradient is computed.
  virtual void cross_entropy_backward(const VocabularyShape& part, std::span<const float> x,
                                      ParameterView weight, std::span<const int32_t> targets,
                                      std::span<const float> log_sums, float loss_scale, std::span<float> dx,
                                      const GradientTarget& weight_gradient, StackArena& arena) const = 0;
  // Writes the logits of this part into their columns of `logits`, whose rows are `vocabulary` long and lie
  // in memory_for_results().
  virtual void logits(const VocabularyShape& part, std::span<const float> x, ParameterView weight,
                      uint64_t vocabulary, std::span<float> logits, StackArena& arena) const = 0;

 protected:
  explicit Ops(bool dry_run) : dry_run_(dry_run) {}

  const bool dry_run_;
};

}  // namespace terrace
