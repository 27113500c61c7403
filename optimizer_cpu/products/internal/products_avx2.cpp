// The products for AVX2 and FMA, compiled with those instructions.
// Must include nothing that other files share beyond plain types and intrinsics: see product_kernels.h.
#include <terrace/optimizer_cpu/products/internal/product_kernels.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define TERRACE_COMPUTE_LANES 8
#define TERRACE_COMPUTE_FMA
#define TERRACE_COMPUTE_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)

namespace terrace::kernels {
namespace {

#include <terrace/optimizer_cpu/products/vectors.inc>

#include <terrace/optimizer_cpu/products/internal/product.inc>

#include <terrace/optimizer_cpu/products/internal/float_panels.inc>

}  // namespace

const ProductKernels kAvx2Products = {.fp32 = product, .bf16 = product_bf16, .bf16_amx = product_bf16_amx};

}  // namespace terrace::kernels
#endif
