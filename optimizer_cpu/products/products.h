// Products of matrices with the same bits on any number of threads.
//
// An element of a product is one chain over the depth in ascending order, c = fma(a, b, c), or c = c + a * b
// where the instruction set has no fused operation. It starts from zero, from a bias or from the target's
// value. So it depends on no blocking and no thread, and AVX2 and AVX-512 agree. Operands are fp32, bf16 or
// fp16; 16 bits are widened while a block is packed. Nothing here allocates: packing memory comes from the
// caller.
//
// Products in bf16 round both operands to bf16 and sum in fp32, as the processor's own bf16 instruction does
// (internal/product_kernels.h); every instruction set gives the same bits, with that instruction or without
// it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/base/data_type.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/workers.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/products/format.h>

namespace terrace {

namespace kernels {
struct KernelProduct;

// What the files of wider instructions call the type.
constexpr Format format_of(DataType type) {
  return type == DataType::fp32 ? Format::fp32 : type == DataType::bf16 ? Format::bf16 : Format::fp16;
}
}  // namespace kernels

// True if a processor with this set multiplies by an instruction of its own, false if it emulates the type.
bool has_instruction(InstructionSet set, ProductType type);

// A row-major matrix, or its transpose: with `transposed` the element (row, column) of the operand is stored
// at column * stride + row.
struct Operand {
  const void* data = nullptr;
  uint64_t stride = 0;  // elements from one stored row to the next
  DataType type = DataType::fp32;
  bool transposed = false;
};

// target[rows x columns] = start + a[rows x depth] * b[depth x columns].
struct ProductShape {
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t depth = 0;
};

// The rows that take a product. It starts from zeros if nothing else is said.
struct ProductTarget {
  float* data = nullptr;
  uint64_t stride = 0;
  bool accumulate = false;      // start from the values in `data`
  const float* bias = nullptr;  // start every row from these `columns` values
};

// Equal parts of scratch memory, one for each compute thread.
struct ProductScratch {
  float* floats = nullptr;  // aligned to 64 bytes
  uint64_t stride = 0;      // floats from one part to the next, a multiple of 16

  float* part(size_t thread_index) const { return floats + thread_index * stride; }
};

// A part of a product: some of its rows and columns.
struct ProductTile {
  uint64_t row = 0;
  uint64_t rows = 0;
  uint64_t column = 0;
  uint64_t columns = 0;
};

class Products {
 public:
  // `set` must be supported here.
  Products(Workers& workers, InstructionSet set, ProductType type = ProductType::fp32);

  // Floats of scratch that a thread needs for a product, a multiple of 16.
  static uint64_t workspace_floats();

  // Multiplies on all workers. Each part of `scratch` has workspace_floats().
  void multiply(const ProductShape& shape, const Operand& a, const Operand& b, const ProductTarget& target,
                const ProductScratch& scratch) const;
  // Multiplies on all workers and hands over every finished tile, once and on the worker that computed it.
  // `values` has the rows of the tile one behind the other, without gaps, and is the worker's scratch. The
  // cut depends on the number of threads; no element does.
  void multiply_tiles(const ProductShape& shape, const Operand& a, const Operand& b,
                      const ProductScratch& scratch,
                      FunctionRef<void(const ProductTile& tile, const float* values)> body) const;
  // Multiplies on the calling thread, for use inside a parallel loop. `workspace` has workspace_floats(),
  // aligned to 64 bytes.
  void multiply_here(const ProductShape& shape, const Operand& a, const Operand& b,
                     const ProductTarget& target, float* workspace) const;

 private:
  Workers& workers_;
  void (*const product_)(const kernels::KernelProduct& product);
};

}  // namespace terrace
