// The kernels for AVX-512 (F, BW, DQ, VL), compiled with those instructions.
// Must include nothing that other files share beyond plain types and intrinsics: see kernels.h.
#include <terrace/reference/model/compute/internal/kernels.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define TERRACE_COMPUTE_TABLE kernels_avx512
#define TERRACE_COMPUTE_LANES 16
#define TERRACE_COMPUTE_FMA

namespace terrace::compute {
namespace {

#include <terrace/reference/model/compute/internal/vectors.inc>

#include <terrace/reference/model/compute/internal/rows.inc>
#include <terrace/reference/model/compute/internal/rows_llama.inc>

}  // namespace

#include <terrace/reference/model/compute/internal/table.inc>

}  // namespace terrace::compute
#endif
