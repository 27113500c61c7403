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

}  // namespace

void accumulate(InstructionSet set, const Accumulation& arguments) {
  const Accumulation& a = arguments;
  const kernels::GradientKernels& table = kernels_of(set);
  const bool one_type = a.accumulator_type == a.gradient_type;
  TERRACE_ASSERT(one_type || a.accumulator_type == DataType::fp32,
                 "gradients in " + std::string(name_of(a.gradient_type)) + " do not accumulate in " +
                     std::string(name_of(a.accumulator_type)));
  if (a.count == 0) return;
  const size_t index = kernels::index_of(a.gradient_type);
  if (!a.first) {
    (one_type ? table.add_same : table.add)[index](a.accumulator, a.gradient, a.count);
  } else if (one_type) {
    std::memcpy(a.accumulator, a.gradient, a.count * bytes_of(a.gradient_type));
  } else {
    table.widen[index](a.gradient, a.accumulator, a.count);
  }
}

double sum_of_squares_block(InstructionSet set, const std::byte* gradient, DataType type, size_t count) {
  TERRACE_ASSERT(count <= kSumBlockElements, "a block of " + std::to_string(count) + " elements");
  kernels::SumLanes lanes{};
  kernels_of(set).add_squares[kernels::index_of(type)](lanes, gradient, count);
  for (size_t half = kernels::kSumLanes / 2; half != 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

void GradientNorm::add_blocks(std::span<const double> block_sums) {
  for (const double block : block_sums) sum_of_squares += block;
}

bool GradientNorm::finite() const {
  return std::isfinite(sum_of_squares);
}

double GradientNorm::norm(double scale) const {
  return std::sqrt(sum_of_squares) / scale;
}

void convert_from_float(InstructionSet set, const float* from, std::byte* to, DataType type, size_t count) {
  if (count == 0) return;
  kernels_of(set).narrow[kernels::index_of(type)](reinterpret_cast<const std::byte*>(from), to, count);
}

void convert_to_float(InstructionSet set, const std::byte* from, DataType type, float* to, size_t count) {
  if (count == 0) return;
  kernels_of(set).widen[kernels::index_of(type)](from, reinterpret_cast<std::byte*>(to), count);
}

}  // namespace terrace
