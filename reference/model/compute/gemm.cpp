#include <terrace/reference/model/compute/gemm.h>

#include <terrace/reference/model/compute/internal/kernel_table.h>

#include <algorithm>

namespace terrace {
namespace {

using compute::Format;
using compute::KernelOperand;
using compute::KernelProduct;

// How a product is cut into tasks. No element depends on it, so it may depend on the threads: tiles are as
// large as still gives every thread some, because a tile's operands are packed for it alone.
struct Tiling {
  uint64_t row_tile;
  uint64_t row_tiles;
  uint64_t column_tile;
  uint64_t column_tiles;

  uint64_t count() const { return row_tiles * column_tiles; }
};

constexpr uint64_t kSliverRows = 12;
constexpr uint64_t kTallestTile = 2 * compute::kRowBlock;
constexpr uint64_t kWidestTile = 256;
constexpr uint64_t kTilesOfAThread = 4;
static_assert(kWidestTile <= compute::kColumnBlock);

// Tiles of nearly equal size, of at most `most_rows` rows and of `columns` columns.
Tiling tiling_of(const ProductShape& shape, uint64_t most_rows, uint64_t columns) {
  Tiling tiling{};
  const uint64_t row_tiles = std::max<uint64_t>(divide_up(shape.rows, most_rows), 1);
  tiling.row_tile = std::max(round_up(divide_up(shape.rows, row_tiles), kSliverRows), kSliverRows);
  tiling.row_tiles = divide_up(shape.rows, tiling.row_tile);
  tiling.column_tile = columns;
  tiling.column_tiles = divide_up(shape.columns, columns);
  return tiling;
}

// `tallest`: the most rows of a tile.
Tiling tiling_for(const ProductShape& shape, uint64_t tallest, size_t threads) {
  struct Size {
    uint64_t rows, columns;
  };
  Tiling tiling{};
  for (const Size size :
       {Size{tallest, kWidestTile}, Size{compute::kRowBlock, kWidestTile},
        Size{compute::kRowBlock, kWidestTile / 2}, Size{compute::kRowBlock, kWidestTile / 4}}) {
    tiling = tiling_of(shape, size.rows, size.columns);
    if (tiling.count() >= kTilesOfAThread * threads) break;
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

Products::Products(Workers& workers, InstructionSet set, ProductType type)
    : workers_(workers), kernels_(compute::kernels_of(set)), product_(compute::product_kernel(set, type)) {}

uint64_t Products::workspace_floats() {
  return compute::kProductWorkspaceFloats + kTileFloats;
}

void Products::multiply(const ProductShape& shape, const Operand& a, const Operand& b,
                        const ProductTarget& target, const ThreadScratch& scratch) const {
  check(target, shape);
  const Tiling tiling = tiling_for(shape, kTallestTile, workers_.thread_count());
  workers_.parallel_for(tiling.count(), [&](size_t index) {
    const Tile tile = tile_at(tiling, shape, index);
    KernelProduct product = product_of(tile, shape.depth, a, b, scratch.mine());
    set_target(product, tile, target);
    product_(product);
  });
}

void Products::multiply_into(const ProductShape& shape, const Operand& a, const Operand& b,
                             const GradientTarget& target, const ThreadScratch& scratch) const {
  const Tiling tiling = tiling_for(shape, compute::kRowBlock, workers_.thread_count());
  const Format format = compute::format_of(target.type);
  workers_.parallel_for(tiling.count(), [&](size_t index) {
    const Tile tile = tile_at(tiling, shape, index);
    float* const workspace = scratch.mine();
    float* const values = workspace + compute::kProductWorkspaceFloats;
    KernelProduct product = product_of(tile, shape.depth, a, b, workspace);
    product.c = values;
    product.c_stride = tile.columns;
    product_(product);
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
  product_(product);
}

}  // namespace terrace
