#include <terrace/optimizer_cpu/gradient.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/internal/gradient_kernels.h>
#include <terrace/optimizer_cpu/quantization.h>

namespace terrace {
namespace {

const kernels::GradientKernels& kernels_of(InstructionSet set) {
  TERRACE_ASSERT(is_supported(set), "this machine has no " + std::string(name_of(set)));
  return *kernels::find_gradient_kernels(set);
}

void check_types(const Accumulation& a) {
  TERRACE_ASSERT(a.accumulator_type == a.gradient_type || a.accumulator_type == DataType::fp32,
                 "gradients in " + std::string(name_of(a.gradient_type)) + " do not accumulate in " +
                     std::string(name_of(a.accumulator_type)));
}

void check_block(size_t count) {
  TERRACE_ASSERT(count <= kSumBlockElements, "a block of " + std::to_string(count) + " elements");
}

double sum_of(kernels::SumLanes& lanes) {
  for (size_t half = kernels::kSumLanes / 2; half != 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// A part of at most kSumBlockElements, whose gradient is rounded.
class RoundedPart {
 public:
  RoundedPart(InstructionSet set, const Accumulation& part) : part_(part) {
    round_to_quantized(set, part.bits, part.gradient, part.gradient_type, rounded_, part.accumulator_type,
                       part.count);
    part_.gradient = rounded_;
    part_.gradient_type = part.accumulator_type;
    part_.bits = 0;
  }
  const Accumulation& part() const { return part_; }

 private:
  Accumulation part_;
  alignas(64) std::byte rounded_[kSumBlockElements * sizeof(float)];
};

void accumulate_rounded(InstructionSet set, Accumulation a) {
  for (size_t left = a.count; left > 0; left -= a.count) {
    a.count = std::min(left, kSumBlockElements);
    accumulate(set, RoundedPart(set, a).part());
    a.accumulator += a.count * bytes_of(a.accumulator_type);
    a.gradient += a.count * bytes_of(a.gradient_type);
  }
}

}  // namespace

void accumulate(InstructionSet set, const Accumulation& arguments) {
  const Accumulation& a = arguments;
  if (a.bits > 0) return accumulate_rounded(set, a);
  const kernels::GradientKernels& table = kernels_of(set);
  const bool one_type = a.accumulator_type == a.gradient_type;
  check_types(a);
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
  check_block(count);
  kernels::SumLanes lanes{};
  kernels_of(set).add_squares[kernels::index_of(type)](lanes, gradient, count);
  return sum_of(lanes);
}

double accumulate_block(InstructionSet set, const Accumulation& block) {
  check_block(block.count);
  if (block.bits > 0) return accumulate_block(set, RoundedPart(set, block).part());
  if (block.first) {  // the copy is in cache when its squares are summed
    accumulate(set, block);
    return sum_of_squares_block(set, block.accumulator, block.accumulator_type, block.count);
  }
  check_types(block);
  const kernels::GradientKernels& table = kernels_of(set);
  const bool one_type = block.accumulator_type == block.gradient_type;
  kernels::SumLanes lanes{};
  (one_type ? table.add_and_square_same : table.add_and_square)[kernels::index_of(block.gradient_type)](
      lanes, block.accumulator, block.gradient, block.count);
  return sum_of(lanes);
}

void GradientNorm::add_blocks(std::span<const double> block_sums) {
  for (const double block : block_sums) sum_.add(block);
}

double GradientNorm::norm(double scale) const {
  return std::sqrt(sum_of_squares()) / scale;
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
