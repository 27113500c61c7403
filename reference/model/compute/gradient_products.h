// Products that end in a gradient (optimizer_cpu/products/products.h has the products themselves).
#pragma once

#include <terrace/base/data_type.h>
#include <terrace/offload/lease/parameter_access.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/products/products.h>

namespace terrace {

namespace compute {
struct Kernels;
}  // namespace compute

// A gradient to write, and the type of its elements.
struct GradientTarget {
  GradientView view;
  DataType type = DataType::fp32;
};

class GradientProducts {
 public:
  // `set` must be supported here.
  GradientProducts(const Products& products, InstructionSet set);

  // Multiplies on all workers into a dense gradient [rows x columns]: the whole product in fp32, landed once.
  // Each part of `scratch` has Products::workspace_floats().
  void multiply(const ProductShape& shape, const Operand& a, const Operand& b, const GradientTarget& target,
                const ProductScratch& scratch) const;

 private:
  Products products_;
  const compute::Kernels& kernels_;
};

}  // namespace terrace
