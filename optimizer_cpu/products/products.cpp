#include <terrace/optimizer_cpu/products/products.h>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/optimizer_cpu/products/internal/product_table.h>

#include <algorithm>

namespace terrace {
namespace {

using kernels::KernelOperand;
using kernels::KernelProduct;

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
constexpr uint64_t kTallestTile = 2 * kernels::kRowBlock;
constexpr uint64_t kWidestTile = 256;
constexpr uint64_t kTilesOfAThread = 4;
static_assert(kWidestTile <= kernels::kColumnBlock);

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
       {Size{tallest, kWidestTile}, Size{kernels::kRowBlock, kWidestTile},
        Size{kernels::kRowBlock, kWidestTile / 2}, Size{kernels::kRowBlock, kWidestTile / 4}}) {
    tiling = tiling_of(shape, size.rows, size.columns);
    if (tiling.count() >= kTilesOfAThread * threads) break;
  }
  return tiling;
}

ProductTile tile_at(const Tiling& tiling, const ProductShape& shape, uint64_t index) {
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
  return {data, operand.stride, kernels::format_of(operand.type), operand.transposed};
}

KernelProduct product_of(const ProductTile& tile, uint64_t depth, const Operand& a, const Operand& b,
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

void set_target(KernelProduct& product, const ProductTile& tile, const ProductTarget& target) {
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

// Scratch of a task that hands its tile over: the tile in fp32, after the packing memory.
constexpr uint64_t kTileFloats = kernels::kRowBlock * kWidestTile;
static_assert(kTileFloats % 16 == 0, "the scratch of neighbouring threads stays aligned");

}  // namespace

Products::Products(Workers& workers, InstructionSet set, ProductType type)
    : workers_(workers), product_(kernels::product_kernel(set, type)) {}

uint64_t Products::workspace_floats() {
  return kernels::kProductWorkspaceFloats + kTileFloats;
}

void Products::multiply(const ProductShape& shape, const Operand& a, const Operand& b,
                        const ProductTarget& target, const ProductScratch& scratch) const {
  check(target, shape);
  const Tiling tiling = tiling_for(shape, kTallestTile, workers_.thread_count());
  workers_.parallel_for(tiling.count(), [&](size_t index) {
    const ProductTile tile = tile_at(tiling, shape, index);
    KernelProduct product =
        product_of(tile, shape.depth, a, b, scratch.part(workers_.current_thread_index()));
    set_target(product, tile, target);
    product_(product);
  });
}

void Products::multiply_tiles(const ProductShape& shape, const Operand& a, const Operand& b,
                              const ProductScratch& scratch,
                              FunctionRef<void(const ProductTile& tile, const float* values)> body) const {
  const Tiling tiling = tiling_for(shape, kernels::kRowBlock, workers_.thread_count());
  workers_.parallel_for(tiling.count(), [&](size_t index) {
    const ProductTile tile = tile_at(tiling, shape, index);
    float* const workspace = scratch.part(workers_.current_thread_index());
    float* const values = workspace + kernels::kProductWorkspaceFloats;
    KernelProduct product = product_of(tile, shape.depth, a, b, workspace);
    product.c = values;
    product.c_stride = tile.columns;
    product_(product);
    body(tile, values);
  });
}

void Products::multiply_here(const ProductShape& shape, const Operand& a, const Operand& b,
                             const ProductTarget& target, float* workspace) const {
  check(target, shape);
  const ProductTile all{0, shape.rows, 0, shape.columns};
  KernelProduct product = product_of(all, shape.depth, a, b, workspace);
  set_target(product, all, target);
  product_(product);
}

}  // namespace terrace
