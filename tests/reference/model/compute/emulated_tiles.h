// The kernel of AMX over tiles that are arrays, for processors with AVX-512 and without AMX.
#pragma once

#include <terrace/reference/model/compute/internal/kernels.h>

namespace terrace::testing {

void product_of_emulated_tiles(const compute::KernelProduct& product);

}  // namespace terrace::testing
