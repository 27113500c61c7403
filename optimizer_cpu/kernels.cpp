// Where the tables of one instruction set are found.
#include <terrace/optimizer_cpu/internal/gradient_kernels.h>
#include <terrace/optimizer_cpu/update_kernels.h>

namespace terrace::kernels {

const GradientKernels* find_gradient_kernels(InstructionSet set) {
  return set == InstructionSet::scalar ? &kScalarGradient : find_vector_gradient_kernels(set);
}

const UpdateKernels* find_update_kernels(InstructionSet set) {
  return set == InstructionSet::scalar ? &kScalarUpdate : find_vector_update_kernels(set);
}

const MasterKernels* find_master_kernels(InstructionSet set) {
  return set == InstructionSet::scalar ? &kScalarMasters : find_vector_master_kernels(set);
}

bool compiled_in(InstructionSet set) {
  return find_update_kernels(set) != nullptr && find_gradient_kernels(set) != nullptr;
}

}  // namespace terrace::kernels
