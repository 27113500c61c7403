// Where the kernels of products of one instruction set are found.
#pragma once

#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/products/internal/product_kernels.h>

namespace terrace::kernels {

// `set` must be supported on this machine.
const ProductKernels& product_kernels_of(InstructionSet set);

// The kernel of products of the type: the processor's own instructions where it has them, else those of the
// set, with the same bits.
ProductKernel product_kernel(InstructionSet set, ProductType type);

}  // namespace terrace::kernels
