// CudaOps: the operations (ops.h) on a GPU. Every address, the arena's included, is one of device memory. A
// call queues kernels on its stream and returns; later operations on the same stream may use the arena's
// memory that it took.
//
// Numbers. Results depend on shapes alone, never on the grid: every reduction has a fixed order and nothing
// uses atomic operations. With one exception each operation has the arithmetic of the host's AVX2 and AVX-512
// kernels in the same order, and gives the same bits for the same inputs. The exception is operations that
// read a row of scores once and do not know its largest until the end: attention's forward pass rescales as
// it goes, and the running loss uses the device's exponential and logarithm.
//
// The same source is compiled by nvcc and, as plain C++, for the emulator of the tests. Nothing here
// allocates memory, knows tiers, leases or models, or waits for the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/memory/cuda/cuda_host_link.h>
#include <terrace/memory/host/stack_arena.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/reference/model/compute/ops.h>

struct CUstream_st;

namespace terrace {

// The stream for kernels, and the most blocks of one launch: kernels loop over the rest.
struct CudaLaunch {
  CUstream_st* stream = nullptr;
  uint32_t block_limit = 1u << 20;
};

// The memory in which a product works, besides its operands and its target.
struct ProductMemory {
  std::span<std::byte> workspace;
  std::span<float> scratch;
};
struct ProductTypes {
  DataType a, b, target;
};

// Matrix products on the device; a library of products implements this interface. Operands are dense: their
// stride is their width.
class CudaProducts {
 public:
  virtual ~CudaProducts() = default;
  // Takes the memory of such a product from the arena. Its size depends on nothing else, so that a dry run
  // takes the same.
  virtual ProductMemory take_memory(const ProductShape& shape, const ProductTypes& types,
                                    StackArena& arena) const = 0;
  virtual void multiply(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                        const Operand& b, const ProductTarget& target, const ProductMemory& memory) = 0;
  // Multiplies into a dense gradient [rows x columns]: the whole product in fp32, landed once.
  virtual void multiply_into(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                             const Operand& b, const GradientTarget& target, const ProductMemory& memory) = 0;
};

// The products of optimizer_cpu/products: each element is the same chain of fused multiply-adds. They need no
// memory.
class TiledProducts final : public CudaProducts {
 public:
  ProductMemory take_memory(const ProductShape&, const ProductTypes&, StackArena&) const override {
    return {};
  }
  void multiply(const CudaLaunch& where, const ProductShape& shape, const Operand& a, const Operand& b,
                const ProductTarget& target, const ProductMemory& memory = {}) override;
  void multiply_into(const CudaLaunch& where, const ProductShape& shape, const Operand& a, const Operand& b,
                     const GradientTarget& target, const ProductMemory& memory = {}) override;
};

struct CudaOpsOptions {
  // The link between the host and the device. A dry run has none; operations alone need none.
  CudaHostLink* link = nullptr;
  bool dry_run = false;
  // True: in a product with a parameter of 16 bits, or into its gradient, fp32 rows are first rounded to its
  // type, in memory of the arena. False: the parameter is widened and the product is one of fp32.
  bool rounds_rows = false;
};

class CudaOps final : public Ops {
 public:
  // Elements of the largest head that attention takes.
  static constexpr uint64_t kLargestHead = 256;

  CudaOps(CudaProducts& products, const CudaLaunch& launch, const CudaOpsOptions& options = {})
      : Ops(options.dry_run),
        products_(products),
        launch_(launch),
        link_(options.link),
        rounds_rows_(options.rounds_rows) {}

  std::span<int32_t> memory_for_ids(uint64_t count, StackArena& arena) const override;
  void send_ids(std::span<const int32_t> ids, std::span<int32_t> memory) const override;
  void fill_rotary(const RotaryTable& table, uint64_t pairs, RotaryFill fill,
                   StackArena& arena) const override;
  std::span<float> memory_for_results(std::span<float> wanted, StackArena& arena) const override;
  void fetch(std::span<const float> results, std::span<float> wanted) const override;
  void finish() const override;
  void forget_results() const noexcept override;
  void copy(std::span<const float> x, std::span<float> y) const override;
  void copy_rows(const RowCopyShape& shape, std::span<const float> x, std::span<float> y) const override;
  void set_zero(std::span<float> x) const override;

  // Attention takes nothing from the arena in the forward pass, and a number per head and token in the
  // backward pass.
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

  // Sets target = values, or target + values, rounded once; does nothing if the target has no address.
  void land(std::span<const float> values, const GradientTarget& target) const;
  // These convert element by element, with the one rounding of base/data_type.h; widening is exact.
  void convert_from_float(std::span<const float> from, std::byte* to, DataType type) const;
  void convert_to_float(ParameterView from, std::span<float> to) const;

 private:
  std::span<const float> as_floats(ParameterView parameter, uint64_t count, StackArena& arena) const;
  void scale(float factor, std::span<float> values) const;
  void land_column_sums(const RowShape& shape, const float* dy, const GradientTarget& target,
                        StackArena& arena) const;
  // Returns rows in the type in which they meet this parameter; rounded rows take memory of the arena.
  Operand rows_for(DataType parameter, std::span<const float> rows, uint64_t width, StackArena& arena) const;
  void adapter_down(const AdapterShape& shape, const Operand& x, ParameterView a, std::span<float> down,
                    StackArena& arena) const;
  bool is_wanted(const GradientTarget& gradient) const;
  // These take the memory that a product needs and run it; a dry run only takes the memory.
  void multiply(const ProductShape& shape, const Operand& a, const Operand& b, const ProductTarget& target,
                StackArena& arena) const;
  void multiply_into(const ProductShape& shape, const Operand& a, const Operand& b,
                     const GradientTarget& target, StackArena& arena) const;

  CudaProducts& products_;
  CudaLaunch launch_;
  CudaHostLink* link_;
  const bool rounds_rows_;
  mutable std::vector<float> host_values_;  // values that the host computes for the device
};

// Does what update_tiles() of optimizer_cpu/optimizer.h does on records in device memory. Masters, moments
// and parameters get the same bits, except that a NaN in a moment may be another NaN.
void cuda_update_tiles(const CudaLaunch& where, const OptimizerStep& step, const TileRun& tiles);

// cuda_accumulate() does what accumulate() of optimizer_cpu/gradient.h does in device memory, with the same
// bits; cuda_set_zero() writes zeros.
void cuda_accumulate(const CudaLaunch& where, const Accumulation& part);
void cuda_set_zero(const CudaLaunch& where, std::byte* elements, DataType type, uint64_t count);

// Does what sum_of_squares_block() of optimizer_cpu/gradient.h does, with the same bits, for every block of
// `count` elements that start at a block of the flat space: sums[i] covers the elements from i *
// kSumBlockElements on.
void cuda_sums_of_squares(const CudaLaunch& where, ParameterView gradient, uint64_t count,
                          std::span<double> sums);

}  // namespace terrace
