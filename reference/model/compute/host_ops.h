// HostOps: the operations on the host's threads, which reach the device's memory like any other (ops.h). Each
// is done when its call returns. Work is cut by shape alone, so results do not depend on the number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/base/function_ref.h>
#include <terrace/base/workers.h>
#include <terrace/memory/host/stack_arena.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/products/products.h>
#include <terrace/reference/model/compute/gradient_products.h>
#include <terrace/reference/model/compute/ops.h>
#include <terrace/reference/model/compute/thread_scratch.h>

namespace terrace {

class HostOps final : public Ops {
 public:
  // The probabilities in attention's memory, per thread and whatever the sequence: queries by keys. Both are
  // even, so that no pair of a product in bf16 lies in two tiles.
  static constexpr uint64_t kQueryBlock = 192;
  static constexpr uint64_t kKeyTile = 256;

  HostOps(Workers& workers, InstructionSet set, ProductType products = ProductType::fp32,
          bool dry_run = false);

  std::span<int32_t> memory_for_ids(uint64_t, StackArena&) const override { return {}; }
  void send_ids(std::span<const int32_t> ids, std::span<int32_t> memory) const override;
  void fill_rotary(const RotaryTable& table, uint64_t pairs, RotaryFill fill,
                   StackArena& arena) const override;
  std::span<float> memory_for_results(std::span<float> wanted, StackArena&) const override { return wanted; }
  void fetch(std::span<const float> results, std::span<float> wanted) const override;
  void finish() const override {}
  void forget_results() const noexcept override {}
  void copy(std::span<const float> x, std::span<float> y) const override;
  void copy_rows(const RowCopyShape& shape, std::span<const float> x, std::span<float> y) const override;
  void set_zero(std::span<float> x) const override;

  void embedding_forward(const EmbeddingShape& shape, std::span<const int32_t> tokens, ParameterView table,
                         std::span<float> y) const override;
  void order_tokens(std::span<const int32_t> tokens, const TokenOrder& order) const override;
  void embedding_backward(const EmbeddingShape& shape, const TokenOrder& order, std::span<const float> dy,
                          const GradientTarget& gradient, StackArena& arena) const override;
  void position_forward(const PositionShape& shape, ParameterView table, std::span<float> y,
                        StackArena& arena) const override;
  void position_backward(const PositionShape& shape, std::span<const float> dy,
                         const GradientTarget& gradient, StackArena& arena) const override;
  void layer_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                          ParameterView beta, std::span<float> y, const NormStatistics& statistics,
                          StackArena& arena) const override;
  void layer_norm_backward(const NormShape& shape, std::span<const float> x, const NormStatistics& statistics,
                           ParameterView gamma, std::span<const float> dy, std::span<float> dx,
                           const GradientTarget& gamma_gradient, const GradientTarget& beta_gradient,
                           StackArena& arena) const override;
  void rms_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                        std::span<float> y, const NormStatistics& statistics,
                        StackArena& arena) const override;
  void rms_norm_backward(const NormShape& shape, std::span<const float> x, const NormStatistics& statistics,
                         ParameterView gamma, std::span<const float> dy, std::span<float> dx,
                         const GradientTarget& gamma_gradient, StackArena& arena) const override;
  ParameterView decode_weight(const CodedWeight& weight, const std::byte* words,
                              StackArena& arena) const override;
  void linear_forward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                      ParameterView bias, std::span<float> y, StackArena& arena) const override;
  void linear_backward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                       std::span<const float> dy, std::span<float> dx, InputGradient existing,
                       const GradientTarget& weight_gradient, const GradientTarget& bias_gradient,
                       StackArena& arena) const override;
  void adapter_forward(const AdapterShape& shape, std::span<const float> x, ParameterView a, ParameterView b,
                       std::span<float> y, StackArena& arena) const override;
  void adapter_backward(const AdapterShape& shape, std::span<const float> x, ParameterView a, ParameterView b,
                        std::span<const float> dy, std::span<float> dx, const GradientTarget& a_gradient,
                        const GradientTarget& b_gradient, StackArena& arena) const override;
  void attention_forward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                         std::span<float> y, std::span<float> log_sums, StackArena& arena) const override;
  void attention_backward(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                          std::span<const float> y, std::span<const float> log_sums,
                          std::span<const float> dy, const AttentionRows<float>& gradients,
                          StackArena& arena) const override;
  void rotate(const RotaryShape& shape, const RotaryTable& table, bool inverse,
              std::span<float> x) const override;
  void swiglu_forward(std::span<const float> gate, std::span<const float> up,
                      std::span<float> y) const override;
  void swiglu_backward(std::span<const float> gate, std::span<const float> up, std::span<float> dy,
                       std::span<float> dup) const override;
  void gelu_forward(std::span<const float> x, std::span<float> y) const override;
  void gelu_backward(std::span<const float> x, std::span<float> dy) const override;
  void add(std::span<const float> x, std::span<float> y) const override;
  void cross_entropy_forward(const VocabularyShape& part, std::span<const float> x, ParameterView weight,
                             std::span<const int32_t> targets, std::span<RunningLoss> running,
                             StackArena& arena) const override;
  void cross_entropy_loss(std::span<const RunningLoss> running, std::span<float> log_sums,
                          std::span<float, 1> loss) const override;
  void cross_entropy_backward(const VocabularyShape& part, std::span<const float> x, ParameterView weight,
                              std::span<const int32_t> targets, std::span<const float> log_sums,
                              float loss_scale, std::span<float> dx, const GradientTarget& weight_gradient,
                              StackArena& arena) const override;
  void logits(const VocabularyShape& part, std::span<const float> x, ParameterView weight,
              uint64_t vocabulary, std::span<float> logits, StackArena& arena) const override;

 private:
  // Returns the values of a short parameter (a bias, a norm's weights) as fp32: in their place, or converted
  // into the arena.
  std::span<const float> as_floats(ParameterView parameter, uint64_t count, StackArena& arena) const;
  // Calls body(first, count) for blocks of `rows` of about the same work; each row is `width` elements long.
  void for_row_blocks(uint64_t rows, uint64_t width, FunctionRef<void(uint64_t, uint64_t)> body) const;
  // sums = the gradients of keys or values, added over the query heads of each group; see attention_backward.
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
  const InstructionSet set_;
  const compute::Kernels& kernels_;
  Products products_;
  GradientProducts gradient_products_;
};

}  // namespace terrace
