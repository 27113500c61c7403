// Products of matrices: tiles of 64 by 64 in registers, 16 deep in shared memory. An element is one chain of
// fused multiply-adds over the depth in ascending order, as optimizer_cpu/products/products.h has it, whatever the tiles.
#include "internal/elements.cuh"

namespace terrace {
namespace compute {

constexpr unsigned kTile = 64;
constexpr unsigned kDepth = 16;
constexpr unsigned kSide = 16;             // threads along a side of the tile
constexpr unsigned kEach = kTile / kSide;  // rows and columns of a thread
constexpr unsigned kLine = kTile + 1;      // so that threads along the depth write to different banks
static_assert(kSide * kSide == kThreads && kTile * kDepth % kThreads == 0);

struct TiledProduct {
  ProductShape shape;
  Operand a, b;
  float* c;  // null: into a gradient
  uint64_t c_stride;
  const float* start;  // null: zeros
  uint64_t start_stride;
  GradientTarget gradient;
};

// `depth` depths of the lines [first_line, first_line + kTile) of an operand, rows of A or columns of B;
// missing ones are zeros. Threads go along what is contiguous in memory.
__device__ inline void load_product_tile(const Operand& from, bool depth_is_contiguous, uint64_t first_line,
                                         uint64_t lines, uint64_t first_depth, unsigned depth, float* tile) {
  for (unsigned i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const unsigned line = depth_is_contiguous ? i / kDepth : i % kTile;
    const unsigned p = depth_is_contiguous ? i % kDepth : i / kTile;
    const uint64_t from_line = first_line + line, from_depth = first_depth + p;
    float value = 0.0f;
    if (from_line < lines && p < depth) {
      value = load_element(
          from.data, from.type,
          depth_is_contiguous ? from_line * from.stride + from_depth : from_depth * from.stride + from_line);
    }
    tile[p * kLine + line] = value;
  }
}

__device__ inline void multiply_tile(const float* a_tile, const float* b_tile, unsigned depth,
                                     float (&sums)[kEach][kEach]) {
  const unsigned tile_row = threadIdx.x / kSide, tile_column = threadIdx.x % kSide;
  for (unsigned p = 0; p < depth; ++p) {
    float a[kEach], b[kEach];
    TERRACE_UNROLL
    for (unsigned i = 0; i < kEach; ++i) a[i] = a_tile[p * kLine + tile_row + i * kSide];
    TERRACE_UNROLL
    for (unsigned j = 0; j < kEach; ++j) b[j] = b_tile[p * kLine + tile_column + j * kSide];
    TERRACE_UNROLL
    for (unsigned i = 0; i < kEach; ++i) {
      TERRACE_UNROLL
      for (unsigned j = 0; j < kEach; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
    }
  }
}

// body(row, column, sum) for what a thread has of the tile.
template <typename Body>
__device__ inline void for_tile(const ProductShape& shape, uint64_t first_row, uint64_t first_column,
                                float (&sums)[kEach][kEach], Body body) {
  TERRACE_UNROLL
  for (unsigned i = 0; i < kEach; ++i) {
    TERRACE_UNROLL
    for (unsigned j = 0; j < kEach; ++j) {
      const uint64_t row = first_row + threadIdx.x / kSide + i * kSide;
      const uint64_t column = first_column + threadIdx.x % kSide + j * kSide;
      if (row < shape.rows && column < shape.columns) body(row, column, sums[i][j]);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2) multiply(TiledProduct product) {
  TERRACE_SHARED(float, a_tile, kDepth* kLine);
  TERRACE_SHARED(float, b_tile, kDepth* kLine);
  const ProductShape& shape = product.shape;
  const uint64_t tile_columns = divide_up(shape.columns, kTile);
  const uint64_t tiles = divide_up(shape.rows, kTile) * tile_columns;
  for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint64_t first_row = tile / tile_columns * kTile, first_column = tile % tile_columns * kTile;
    float sums[kEach][kEach] = {};
    for_tile(shape, first_row, first_column, sums, [&](uint64_t row, uint64_t column, float& sum) {
      if (product.start != nullptr) sum = product.start[row * product.start_stride + column];
    });
    for (uint64_t first = 0; first < shape.depth; first += kDepth) {
      const uint64_t left = shape.depth - first;
      const unsigned depth = left < kDepth ? static_cast<unsigned>(left) : kDepth;
      __syncthreads();
      load_product_tile(product.a, !product.a.transposed, first_row, shape.rows, first, depth, a_tile);
      load_product_tile(product.b, product.b.transposed, first_column, shape.columns, first, depth, b_tile);
      __syncthreads();
      multiply_tile(a_tile, b_tile, depth, sums);
    }
    for_tile(shape, first_row, first_column, sums, [&](uint64_t row, uint64_t column, float& sum) {
      if (product.c != nullptr) {
        product.c[row * product.c_stride + column] = sum;
      } else {
        land_elements(product.gradient, row * shape.columns + column, Floats<1>{{sum}});
      }
    });
  }
}

void launch_product(const CudaLaunch& where, const TiledProduct& product) {
  const uint64_t tiles = divide_up(product.shape.rows, kTile) * divide_up(product.shape.columns, kTile);
  launch(where, tiles, kThreads, multiply, product);
}

}  // namespace compute

void TiledProducts::multiply(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                             const Operand& b, const ProductTarget& target, const ProductMemory&) {
  const float* const start = target.accumulate ? target.data : target.bias;
  compute::launch_product(
      where, {shape, a, b, target.data, target.stride, start, target.accumulate ? target.stride : 0, {}});
}

void TiledProducts::multiply_into(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                                  const Operand& b, const GradientTarget& target, const ProductMemory&) {
  if (target.view.data == nullptr) return;
  compute::launch_product(where, {shape, a, b, nullptr, 0, nullptr, 0, target});
}

using compute::matrix;
using compute::rows_of;
using compute::transposed;

void CudaOps::multiply(const ProductShape& shape, const Operand& a, const Operand& b,
                       const ProductTarget& target, StackArena& arena) const {
  const StackArena::Frame frame(arena);
  const ProductMemory memory = products_.take_memory(shape, {a.type, b.type, DataType::fp32}, arena);
  if (!dry_run_) products_.multiply(launch_, shape, a, b, target, memory);
}

// A dry run does not know, and takes memory for all.
bool CudaOps::is_wanted(const GradientTarget& gradient) const {
  return dry_run_ || gradient.view.data != nullptr;
}

void CudaOps::multiply_into(const ProductShape& shape, const Operand& a, const Operand& b,
                            const GradientTarget& target, StackArena& arena) const {
  if (!is_wanted(target)) return;
  const StackArena::Frame frame(arena);
  const ProductMemory memory = products_.take_memory(shape, {a.type, b.type, target.type}, arena);
  if (!dry_run_) products_.multiply_into(launch_, shape, a, b, target, memory);
}

Operand CudaOps::rows_for(DataType parameter, std::span<const float> rows, uint64_t width,
                          StackArena& arena) const {
  if (!rounds_rows_ || parameter == DataType::fp32) return rows_of(rows.data(), width);
  const std::span<std::byte> rounded = arena.allocate<std::byte>(rows.size() * bytes_of(parameter));
  convert_from_float(rows, rounded.data(), parameter);
  return {.data = rounded.data(), .stride = width, .type = parameter};
}

void CudaOps::linear_forward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                             ParameterView bias, std::span<float> y, StackArena& arena) const {
  compute::require_linear_rows(shape, x.size(), y.size());
  const StackArena::Frame frame(arena);
  const std::span<const float> biases =
      shape.biased ? as_floats(bias, shape.outputs, arena) : std::span<const float>();
  multiply({shape.rows, shape.outputs, shape.inputs}, rows_for(weight.type, x, shape.inputs, arena),
           compute::weight_of(shape, weight, false),
           {.data = y.data(), .stride = shape.outputs, .bias = biases.data()}, arena);
}

void CudaOps::linear_backward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                              std::span<const float> dy, std::span<float> dx, Ops::InputGradient existing,
                              const GradientTarget& weight_gradient, const GradientTarget& bias_gradient,
                              StackArena& arena) const {
  compute::require_linear_rows(shape, x.size(), dy.size());
  compute::require_linear_rows(shape, dx.size(), dy.size());
  if (shape.biased) land_column_sums({shape.rows, shape.outputs}, dy.data(), bias_gradient, arena);
  const StackArena::Frame frame(arena);
  const Operand dy_rows = rows_for(weight.type, dy, shape.outputs, arena);
  multiply({shape.rows, shape.inputs, shape.outputs}, dy_rows, compute::weight_of(shape, weight, true),
           {.data = dx.data(), .stride = shape.inputs, .accumulate = existing == Ops::InputGradient::add},
           arena);
  if (!is_wanted(weight_gradient)) return;
  const Operand x_rows = rows_for(weight.type, x, shape.inputs, arena);
  if (shape.outputs_first) {
    multiply_into({shape.outputs, shape.inputs, shape.rows}, transposed(dy_rows), x_rows, weight_gradient,
                  arena);
  } else {
    multiply_into({shape.inputs, shape.outputs, shape.rows}, transposed(x_rows), dy_rows, weight_gradient,
                  arena);
  }
}

void CudaOps::adapter_down(const AdapterShape& shape, const Operand& x, ParameterView a,
                           std::span<float> down, StackArena& arena) const {
  multiply({shape.rows, shape.rank, shape.inputs}, x, matrix(a, shape.inputs, true),
           {.data = down.data(), .stride = shape.rank}, arena);
  scale(shape.scale, down);
}

void CudaOps::adapter_forward(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                              ParameterView b, std::span<float> y, StackArena& arena) const {
  compute::require_adapter_rows(shape, x.size(), y.size());
  const StackArena::Frame frame(arena);
  const std::span<float> down = arena.allocate<float>(shape.rows * shape.rank);
  adapter_down(shape, rows_for(a.type, x, shape.inputs, arena), a, down, arena);
  multiply({shape.rows, shape.outputs, shape.rank}, rows_for(b.type, down, shape.rank, arena),
           matrix(b, shape.rank, true), {.data = y.data(), .stride = shape.outputs, .accumulate = true},
           arena);
}

// With u = scale * x A^T: dB = dy^T u; du = scale * dy B; dA = du^T x; dx += du A.
void CudaOps::adapter_backward(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                               ParameterView b, std::span<const float> dy, std::span<float> dx,
                               const GradientTarget& a_gradient, const GradientTarget& b_gradient,
                               StackArena& arena) const {
  compute::require_adapter_rows(shape, x.size(), dy.size());
  if (!dx.empty()) compute::require_adapter_rows(shape, dx.size(), dy.size());
  const StackArena::Frame frame(arena);
  const std::span<float> down = arena.allocate<float>(shape.rows * shape.rank);
  const Operand x_rows = rows_for(a.type, x, shape.inputs, arena);
  const Operand dy_rows = rows_for(b.type, dy, shape.outputs, arena);
  adapter_down(shape, x_rows, a, down, arena);
  multiply_into({shape.outputs, shape.rank, shape.rows}, transposed(dy_rows),
                rows_for(b.type, down, shape.rank, arena), b_gradient, arena);
  multiply({shape.rows, shape.rank, shape.outputs}, dy_rows, matrix(b, shape.rank, false),
           {.data = down.data(), .stride = shape.rank}, arena);
  scale(shape.scale, down);
  const Operand down_rows = rows_for(a.type, down, shape.rank, arena);
  multiply_into({shape.rank, shape.inputs, shape.rows}, transposed(down_rows), x_rows, a_gradient, arena);
  if (dx.empty()) return;
  multiply({shape.rows, shape.inputs, shape.rank}, down_rows, matrix(a, shape.inputs, false),
           {.data = dx.data(), .stride = shape.inputs, .accumulate = true}, arena);
}

}  // namespace terrace
