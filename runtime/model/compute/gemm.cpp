#include <terrace/runtime/model/compute/gemm.h>

#include <terrace/runtime/model/compute/internal/kernel_table.h>

#include <algorithm>

namespace terrace {
namespace {

using compute::Format;
using compute::KernelOperand;
using compute::KernelProduct;

// How a product is cut into tasks, by its shape alone: row blocks of nearly equal size and columns as wide as
// still gives every thread of a large machine something to do.
struct Tiling {
  uint64_t row_tile;
  uint64_t row_tiles;
  uint64_t column_tile;
  uint64_t column_tiles;

  uint64_t count() const { return row_tiles * column_tiles; }
};

constexpr uint64_t kSliverRows = 12;
constexpr uint64_t kWidestTile = 128;
constexpr uint64_t kNarrowestTile = 64;
constexpr uint64_t kEnoughTasks = 32;
static_assert(kWidestTile <= compute::kColumnBlock);

Tiling tiling_of(const ProductShape& shape) {
  Tiling tiling{};
  const uint64_t row_blocks = std::max<uint64_t>(divide_up(shape.rows, compute::kRowBlock), 1);
  tiling.row_tile = std::max(round_up(divide_up(shape.rows, row_blocks), kSliverRows), kSliverRows);
  tiling.row_tiles = divide_up(shape.rows, tiling.row_tile);
  tiling.column_tile = kWidestTile;
  tiling.column_tiles = divide_up(shape.columns, tiling.column_tile);
  if (tiling.count() < kEnoughTasks) {
    tiling.column_tile = kNarrowestTile;
    tiling.column_tiles = divide_up(shape.columns, tiling.column_tile);
  }
  return tiling;
}

// One tile: the part of the product that one task computes.
struct Tile {
  uint64_t row, rows, column, columns;
};

Tile tile_at(const Tiling& tiling, const ProductShape& shape, uint64_t index) {
  // Neighbouring tasks share a column tile, so the weights packed by one are still in a cache for the next.
  const uint64_t row = index % tiling.row_tiles * tiling.row_tile;
  const uint64_t column = index / tiling.row_tiles * tiling.column_tile;
  return {row, std::min(tiling.row_tile, shape.rows - row), column,
          std::min(tiling.column_tile, shape.columns - column)};
}

// The operand from `row` and `column` on.
KernelOperand part_of(const Operand& operand, uint64_t row, uint64_t column) {
  const uint64_t elements =
      operand.transposed ? column * operand.stride + row : row * operand.stride + column;
  const std::byte* data = static_cast<const std::byte*>(operand.data) + elements * bytes_of(operand.type);
  return {data, operand.stride, compute::format_of(operand.type), operand.transposed};
}

KernelProduct product_of(const Tile& tile, uint64_t depth, const Operand& a, const Operand& b,
                         float* workspace) {
  KernelProduct product{};
  product.rows = tile.rows;
  product.columns = tile.columns;
  product.depth = depth;
  product.a = part_of(a, tile.row, 0);
  product.b = part_of(b, 0, tile.column);
  product.workspace = workspace;
  return product;
}

void set_target(KernelProduct& product, const Tile& tile, const ProductTarget& target) {
  product.c = target.data + tile.row * target.stride + tile.column;
  product.c_stride = target.stride;
  if (target.accumulate) {
    product.start = product.c;
    product.start_stride = target.stride;
  } else if (target.bias != nullptr) {
    product.start = target.bias + tile.column;
  }
}

void check(const ProductTarget& target, const ProductShape& shape) {
  TERRACE_ASSERT(target.stride >= shape.columns, "the rows of a product would overlap");
  TERRACE_ASSERT(!target.accumulate || target.bias == nullptr, "a product starts from one thing only");
}

// Scratch of a task that lands in a gradient: the tile in fp32, after the packing memory.
constexpr uint64_t kTileFloats = compute::kRowBlock * kWidestTile;

}  // namespace

ThreadScratch::ThreadScratch(StackArena& arena, const Workers& workers, uint64_t floats_per_thread)
    : workers_(workers),
      stride_(round_up(floats_per_thread, StackArena::kAlignment / sizeof(float))),
      floats_(arena.allocate<float>(stride_ * workers.thread_count())) {}

Products::Products(Workers& workers, InstructionSet set)
    : workers_(workers), kernels_(compute::kernels_of(set)) {}

uint64_t Products::workspace_floats() {
  return compute::kProductWorkspaceFloats + kTileFloats;
}

void Products::multiply(const ProductShape& shape, const Operand& a, const Operand& b,
                        const ProductTarget& target, const ThreadScratch& scratch) const {
  check(target, shape);
  const Tiling tiling = tiling_of(shape);
  workers_.parallel_for(tiling.count(), [&](size_t index) {
    const Tile tile = tile_at(tiling, shape, index);
    KernelProduct product = product_of(tile, shape.depth, a, b, scratch.mine());
    set_target(product, tile, target);
    kernels_.product(product);
  });
}

void Products::multiply_into(const ProductShape& shape, const Operand& a, const Operand& b,
                             const GradientTarget& target, const ThreadScratch& scratch) const {
  const Tiling tiling = tiling_of(shape);
  const Format format = compute::format_of(target.type);
  workers_.parallel_for(tiling.count(), [&](size_t index) {
    const Tile tile = tile_at(tiling, shape, index);
    float* const workspace = scratch.mine();
    float* const values = workspace + compute::kProductWorkspaceFloats;
    KernelProduct product = product_of(tile, shape.depth, a, b, workspace);
    product.c = values;
    product.c_stride = tile.columns;
    kernels_.product(product);
    for (uint64_t row = 0; row < tile.rows; ++row) {
      const uint64_t first = (tile.row + row) * shape.columns + tile.column;
      kernels_.land(values + row * tile.columns, target.view.data + first * bytes_of(target.type), format,
                    target.view.accumulate, tile.columns);
    }
  });
}

void Products::multiply_here(const ProductShape& shape, const Operand& a, const Operand& b,
                             const ProductTarget& target, float* workspace) const {
  check(target, shape);
  const Tile all{0, shape.rows, 0, shape.columns};
  KernelProduct product = product_of(all, shape.depth, a, b, workspace);
  set_target(product, all, target);
  kernels_.product(product);
}

}  // namespace terrace
