#include <terrace/reference/model/compute/gradient_products.h>

#include <terrace/reference/model/compute/internal/kernel_table.h>

namespace terrace {

GradientProducts::GradientProducts(const Products& products, InstructionSet set)
    : products_(products), kernels_(compute::kernels_of(set)) {}

void GradientProducts::multiply(const ProductShape& shape, const Operand& a, const Operand& b,
                                const GradientTarget& target, const ProductScratch& scratch) const {
  const kernels::Format format = kernels::format_of(target.type);
  products_.multiply_tiles(shape, a, b, scratch, [&](const ProductTile& tile, const float* values) {
    for (uint64_t row = 0; row < tile.rows; ++row) {
      const uint64_t first = (tile.row + row) * shape.columns + tile.column;
      kernels_.land(values + row * tile.columns, target.view.data + first * bytes_of(target.type), format,
                    target.view.accumulate, tile.columns);
    }
  });
}

}  // namespace terrace
