// The products for every machine: four lanes of the baseline, without fused operations.
// Must include nothing that other files share beyond plain types and intrinsics: see product_kernels.h.
#include <terrace/optimizer_cpu/products/internal/product_kernels.h>

#define TERRACE_COMPUTE_LANES 4
#define TERRACE_COMPUTE_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)

namespace terrace::kernels {
namespace {

#include <terrace/optimizer_cpu/products/vectors.inc>

#include <terrace/optimizer_cpu/products/internal/product.inc>

#include <terrace/optimizer_cpu/products/internal/float_panels.inc>

}  // namespace

const ProductKernels kScalarProducts = {.fp32 = product, .bf16 = product_bf16, .bf16_amx = product_bf16_amx};

}  // namespace terrace::kernels
