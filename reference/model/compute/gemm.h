// Products of matrices with the same bits on any number of threads.
//
// An element of a product is one chain over the depth in ascending order, c = fma(a, b, c), or c = c + a * b
// where the instruction set has no fused operation. It starts from zero, from a bias or from the target's
// value. So it depends on no blocking and no thread, and AVX2 and AVX-512 agree. Operands are fp32, bf16 or
// fp16; 16 bits are widened while a block is packed. Nothing here allocates: packing memory comes from the
// caller.
//
// Products in bf16 round both operands to bf16 and sum in fp32, as the processor's own bf16 instruction does
// (internal/kernels.h); every instruction set gives the same bits, with that instruction or without it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/base/data_type.h>
#include <terrace/base/workers.h>
#include <terrace/memory/host/stack_arena.h>
#include <terrace/offload/lease/parameter_access.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/runtime/config/product_type.h>

namespace terrace {

namespace compute {
struct Kernels;
struct KernelProduct;
}  // namespace compute

// A gradient to write, and the type of its elements.
struct GradientTarget {
  GradientView view;
  DataType type = DataType::fp32;
};

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

struct ProductTarget {
  float* data = nullptr;
  uint64_t stride = 0;
  bool accumulate = false;      // start from the values in `data`
  const float* bias = nullptr;  // start every row from these `columns` values
};

// Equal parts of scratch memory, one for each compute thread. They are taken from an arena until its frame
// ends.
class ThreadScratch {
 public:
  ThreadScratch(StackArena& arena, const Workers& workers, uint64_t floats_per_thread);
  // The part of the calling worker. Not for dry runs.
  float* mine() const { return floats_.data() + workers_.current_thread_index() * stride_; }

 private:
  const Workers& workers_;
  uint64_t stride_;
  std::span<float> floats_;
};

class Products {
 public:
  // `set` must be supported here.
  Products(Workers& workers, InstructionSet set, ProductType type = ProductType::fp32);

  // Floats of scratch that a thread needs for a product.
  static uint64_t workspace_floats();

  // Multiplies on all workers. `scratch` has workspace_floats() for each.
  void multiply(const ProductShape& shape, const Operand& a, const Operand& b, const ProductTarget& target,
                const ThreadScratch& scratch) const;
  // Multiplies on all workers into a dense gradient [rows x columns]: the whole product in fp32, landed once.
  void multiply_into(const ProductShape& shape, const Operand& a, const Operand& b,
                     const GradientTarget& target, const ThreadScratch& scratch) const;
  // Multiplies on the calling thread, for use inside a parallel loop. `workspace` has workspace_floats(),
  // aligned to 64 bytes.
  void multiply_here(const ProductShape& shape, const Operand& a, const Operand& b,
                     const ProductTarget& target, float* workspace) const;

 private:
  Workers& workers_;
  const compute::Kernels& kernels_;
  void (*const product_)(const compute::KernelProduct& product);
};

}  // namespace terrace
