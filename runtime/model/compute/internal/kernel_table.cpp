#include <terrace/runtime/model/compute/internal/kernel_table.h>

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

ProductKernel product_kernel(InstructionSet set, DataType type) {
  TERRACE_ASSERT(type != DataType::fp16, "no product rounds its operands to fp16");
  if (type == DataType::fp32) return kernels_of(set).product;
#if defined(__x86_64__)
  if (set == InstructionSet::avx512 && __builtin_cpu_supports("avx512bf16")) return product_of_pairs;
#endif
  return kernels_of(set).product_bf16;
}

}  // namespace terrace::compute
