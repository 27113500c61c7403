#include <terrace/reference/model/compute/internal/kernel_table.h>

#include <string>

namespace terrace::compute {

const Kernels& kernels_of(InstructionSet set) {
  TERRACE_ASSERT(is_supported(set), "this machine cannot run " + std::string(name_of(set)));
#if defined(__x86_64__)
  if (set == InstructionSet::avx512) return kernels_avx512;
  if (set == InstructionSet::avx2) return kernels_avx2;
#endif
  return kernels_scalar;
}

}  // namespace terrace::compute
