// The products of matrices as tables of plain functions, one table per instruction set.
//
// The files that fill a table are compiled with wider instructions than the rest of the program. They must
// never use a function or template that another file also instantiates (the standard library's included): the
// linker keeps one copy, and a copy made of AVX-512 instructions would end the program on a machine without
// them. So this header names nothing but plain types.
//
// Numbers. Everything here runs on one thread and depends on its arguments alone. An element of a product is
// one chain over the depth in ascending order, c = fma(a, b, c) with AVX2 and AVX-512 and c = c + a * b
// without them. It starts from zero or from a given value and depends on no blocking.
//
// `bf16` has the arithmetic of VDPBF16PS (Intel's manual, volume 2) in every table, bit for bit: both
// operands rounded to bf16, the depths of a pair in the order 1, 0, 3, 2, ..., the last pair filled up with a
// zero, c = fma(a, b, c) in fp32 rounded to nearest even, denormal operands and results as zeros. `bf16_amx`
// has that of TDPBF16PS: for every 32 depths, the last ones filled up with zeros, one chain over the even and
// one over the odd depths in ascending order, each from zero; c = c + (even + odd); rounded and flushed in
// the same way. Which NaN stands for one is left open.
#pragma once

#include <cstdint>

#include <terrace/optimizer_cpu/products/format.h>

namespace terrace::kernels {

// A row-major matrix, or its transpose: with `transposed` the element (row, column) lies at column * stride +
// row.
struct KernelOperand {
  const void* data;
  uint64_t stride;  // elements from one stored row to the next
  Format format;
  bool transposed;
};

// c[rows x columns] = start + a[rows x depth] * b[depth x columns].
struct KernelProduct {
  uint64_t rows;
  uint64_t columns;
  uint64_t depth;
  KernelOperand a;
  KernelOperand b;
  float* c;
  uint64_t c_stride;
  const float* start;     // null: zeros. May be `c` itself (with its stride): the product is added
  uint64_t start_stride;  // 0: one row of `columns` values, a bias
  float* workspace;       // kProductWorkspaceFloats, 64-byte aligned
};

// The blocks of a product. A block of A and a block of B share the second-level cache of 1 MiB; a sliver of A
// (12 rows) lives in the first-level cache. The column block is a multiple of every kernel's sliver.
inline constexpr uint64_t kRowBlock = 252;
inline constexpr uint64_t kColumnBlock = 256;
inline constexpr uint64_t kLineBytes = 768;       // of a row of A, a column of B: 192 fp32 or 384 bf16
inline constexpr uint64_t kPackedRowBlock = 256;  // with the rows that fill up its last panel
inline constexpr uint64_t kLargestSliverFloats = 32 * 32;
inline constexpr uint64_t kProductWorkspaceFloats =
    (kPackedRowBlock + kColumnBlock) * kLineBytes / sizeof(float) + kLargestSliverFloats;
static_assert(kProductWorkspaceFloats % 16 == 0, "workspaces of neighbouring threads stay aligned");

using ProductKernel = void (*)(const KernelProduct& product);

struct ProductKernels {
  ProductKernel fp32;
  // The same with both operands rounded to bf16, in the order of AVX512_BF16 and in that of AMX.
  ProductKernel bf16;
  ProductKernel bf16_amx;
};

extern const ProductKernels kScalarProducts;
#if defined(__x86_64__)
extern const ProductKernels kAvx2Products;
extern const ProductKernels kAvx512Products;

// `bf16` by the instructions of AVX512_BF16 and `bf16_amx` by those of AMX, with the same bits.
void product_of_pairs(const KernelProduct& product);
void product_of_tiles(const KernelProduct& product);
#endif

}  // namespace terrace::kernels
