// The kernel of AMX over tiles that are arrays, for processors with AVX-512 and without AMX.
#pragma once

#include <terrace/optimizer_cpu/products/internal/product_kernels.h>

namespace terrace::testing {

void product_of_emulated_tiles(const kernels::KernelProduct& product);

}  // namespace terrace::testing
