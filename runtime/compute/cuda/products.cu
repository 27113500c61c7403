// Products of matrices: tiles of 64 by 64 in registers, 16 deep in shared memory. An element is one chain of
// fused multiply-adds over the depth in ascending order, as gemm.h has it, whatever the tiles.
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
                             const Operand& b, const ProductTarget& target) {
  const float* const start = target.accumulate ? target.data : target.bias;
  compute::launch_product(
      where, {shape, a, b, target.data, target.stride, start, target.accumulate ? target.stride : 0, {}});
}

void TiledProducts::multiply_into(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                                  const Operand& b, const GradientTarget& target) {
  if (target.view.data == nullptr) return;
  compute::launch_product(where, {shape, a, b, nullptr, 0, nullptr, 0, target});
}

using compute::matrix;
using compute::rows_of;

void CudaOps::linear_forward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                             ParameterView bias, std::span<float> y, StackArena& arena) const {
  compute::require_linear_rows(shape, x.size(), y.size());
  const StackArena::Frame frame(arena);
  const std::span<const float> biases =
      shape.biased ? as_floats(bias, shape.outputs, arena) : std::span<const float>();
  if (dry_run_) return;
  products_.multiply(launch_, {shape.rows, shape.outputs, shape.inputs}, rows_of(x.data(), shape.inputs),
                     compute::weight_of(shape, weight, false),
                     {.data = y.data(), .stride = shape.outputs, .bias = biases.data()});
}

void CudaOps::linear_backward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                              std::span<const float> dy, std::span<float> dx, Ops::InputGradient existing,
                              const GradientTarget& weight_gradient, const GradientTarget& bias_gradient,
                              StackArena& arena) const {
  compute::require_linear_rows(shape, x.size(), dy.size());
  compute::require_linear_rows(shape, dx.size(), dy.size());
  if (!dry_run_) {
    products_.multiply(
        launch_, {shape.rows, shape.inputs, shape.outputs}, rows_of(dy.data(), shape.outputs),
        compute::weight_of(shape, weight, true),
        {.data = dx.data(), .stride = shape.inputs, .accumulate = existing == Ops::InputGradient::add});
    const Operand across_x = rows_of(x.data(), shape.inputs, !shape.outputs_first);
    const Operand across_dy = rows_of(dy.data(), shape.outputs, shape.outputs_first);
    if (shape.outputs_first) {
      products_.multiply_into(launch_, {shape.outputs, shape.inputs, shape.rows}, across_dy, across_x,
                              weight_gradient);
    } else {
      products_.multiply_into(launch_, {shape.inputs, shape.outputs, shape.rows}, across_x, across_dy,
                              weight_gradient);
    }
  }
  if (shape.biased) land_column_sums({shape.rows, shape.outputs}, dy.data(), bias_gradient, arena);
}

void CudaOps::adapter_down(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                           std::span<float> down) const {
  products_.multiply(launch_, {shape.rows, shape.rank, shape.inputs}, rows_of(x.data(), shape.inputs),
                     matrix(a, shape.inputs, true), {.data = down.data(), .stride = shape.rank});
  scale(shape.scale, down);
}

void CudaOps::adapter_forward(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                              ParameterView b, std::span<float> y, StackArena& arena) const {
  compute::require_adapter_rows(shape, x.size(), y.size());
  const StackArena::Frame frame(arena);
  const std::span<float> down = arena.allocate<float>(shape.rows * shape.rank);
  if (dry_run_) return;
  adapter_down(shape, x, a, down);
  products_.multiply(launch_, {shape.rows, shape.outputs, shape.rank}, rows_of(down.data(), shape.rank),
                     matrix(b, shape.rank, true),
                     {.data = y.data(), .stride = shape.outputs, .accumulate = true});
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
  if (dry_run_) return;
  adapter_down(shape, x, a, down);
  products_.multiply_into(launch_, {shape.outputs, shape.rank, shape.rows},
                          rows_of(dy.data(), shape.outputs, true), rows_of(down.data(), shape.rank),
                          b_gradient);
  products_.multiply(launch_, {shape.rows, shape.rank, shape.outputs}, rows_of(dy.data(), shape.outputs),
                     matrix(b, shape.rank, false), {.data = down.data(), .stride = shape.rank});
  scale(shape.scale, down);
  products_.multiply_into(launch_, {shape.rank, shape.inputs, shape.rows},
                          rows_of(down.data(), shape.rank, true), rows_of(x.data(), shape.inputs),
                          a_gradient);
  if (dx.empty()) return;
  products_.multiply(launch_, {shape.rows, shape.inputs, shape.rank}, rows_of(down.data(), shape.rank),
                     matrix(a, shape.inputs, false),
                     {.data = dx.data(), .stride = shape.inputs, .accumulate = true});
}

}  // namespace terrace
