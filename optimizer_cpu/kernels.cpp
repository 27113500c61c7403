#include <terrace/optimizer_cpu/internal/kernels.h>

namespace terrace::kernels {

const AdamKernels* find_adam_kernels(InstructionSet set) {
  return set == InstructionSet::scalar ? &kScalarAdam : find_vector_adam_kernels(set);
}

const GradientKernels* find_gradient_kernels(InstructionSet set) {
  return set == InstructionSet::scalar ? &kScalarGradient : find_vector_gradient_kernels(set);
}

bool compiled_in(InstructionSet set) {
  return find_adam_kernels(set) != nullptr && find_gradient_kernels(set) != nullptr;
}

}  // namespace terrace::kernels
