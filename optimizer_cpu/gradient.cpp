#include <terrace/optimizer_cpu/gradient.h>

#include <cmath>
#include <cstring>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/internal/kernels.h>

namespace terrace {
namespace {

const kernels::GradientKernels& kernels_of(InstructionSet set) {
  TERRACE_ASSERT(is_supported(set), "this machine has no " + std::string(name_of(set)));
  return *kernels::find_gradient_kernels(set);
}

size_t checked_index(DataType type) {
  TERRACE_ASSERT(kernels::has_table_index(type),
                 "gradients are fp32 or bf16 here, not " + std::string(name_of(type)));
  return kernels::table_index(type);
}

}  // namespace

void accumulate(InstructionSet set, float* accumulator, const std::byte* gradient, DataType type,
                size_t count, bool first) {
  const kernels::GradientKernels& table = kernels_of(set);
  const size_t index = checked_index(type);
  if (count == 0) return;
  if (!first) {
    table.add[index](accumulator, gradient, count);
  } else if (type == DataType::fp32) {
    std::memcpy(accumulator, gradient, count * sizeof(float));
  } else {
    table.to_float(gradient, accumulator, count);
  }
}

double sum_of_squares_block(InstructionSet set, const std::byte* gradient, DataType type, size_t count) {
  TERRACE_ASSERT(count <= kSumBlockElements, "a block of " + std::to_string(count) + " elements");
  kernels::SumLanes lanes{};
  kernels_of(set).add_squares[checked_index(type)](lanes, gradient, count);
  for (size_t half = kernels::kSumLanes / 2; half != 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

GradientCheck check_gradients(std::span<const double> block_sums) {
  double sum = 0;
  for (const double block : block_sums) sum += block;
  return {.sum_of_squares = sum, .finite = std::isfinite(sum)};
}

void convert_to_bf16(InstructionSet set, const float* from, Bf16* to, size_t count) {
  kernels_of(set).to_bf16(from, to, count);
}

void convert_to_float(InstructionSet set, const Bf16* from, float* to, size_t count) {
  kernels_of(set).to_float(reinterpret_cast<const std::byte*>(from), to, count);
}

}  // namespace terrace
