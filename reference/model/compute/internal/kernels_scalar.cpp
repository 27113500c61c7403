// The kernels for every machine: four lanes of the baseline.
// Must include nothing that other files share beyond plain types and intrinsics: see kernels.h.
#include <terrace/reference/model/compute/internal/kernels.h>

#define TERRACE_COMPUTE_TABLE kernels_scalar
#define TERRACE_COMPUTE_LANES 4

namespace terrace::compute {
namespace {

#include <terrace/reference/model/compute/internal/vectors.inc>

#include <terrace/reference/model/compute/internal/rows.inc>
#include <terrace/reference/model/compute/internal/rows_llama.inc>

}  // namespace

#include <terrace/reference/model/compute/internal/table.inc>

}  // namespace terrace::compute
