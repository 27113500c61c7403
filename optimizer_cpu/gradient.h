// Operations on gradients and parameters outside the update itself: accumulation, the sum of squares for the
// norm, conversion. They are free functions over runs of elements of any DataType, without threads or
// allocation, and give the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <span>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/exact_sum.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

// accumulator[i] = gradient[i] when `first`, else accumulator[i] = round(accumulator[i] + gradient[i]): the
// sum is in fp32 and rounded once to the accumulator's type. An accumulator is fp32, or of the gradients' own
// type. Which NaN a sum is, is not specified.
struct Accumulation {
  std::byte* accumulator = nullptr;  // any alignment, like the gradient; the two do not overlap
  DataType accumulator_type = DataType::fp32;
  const std::byte* gradient = nullptr;
  DataType gradient_type = DataType::fp32;
  size_t count = 0;
  bool first = false;
  // Above 0 what is added is the gradient rounded by round_to_quantized() of quantization.h to so many bits,
  // in the accumulator's type; the first element begins a block.
  uint32_t bits = 0;
};
void accumulate(InstructionSet set, const Accumulation& arguments);

// The global norm is made of the sums of squares of so many consecutive elements of the flat space.
inline constexpr size_t kSumBlockElements = 4096;

// Returns the sum of squares of one block (count <= kSumBlockElements; the last block of a section may be
// short) in fp64, in an order that does not depend on the instruction set: 16 lanes start at 0; lane l adds
// the squares of the elements l, l + 16, l + 32, ... in that order; then lane i += lane i + 8 for i < 8, the
// same with 4, 2 and 1; lane 0 is the sum. The square of an fp32 is exact in fp64 and the sum of a block
// cannot overflow: it is finite exactly when every element is.
double sum_of_squares_block(InstructionSet set, const std::byte* gradient, DataType type, size_t count);

// Does accumulate() and then sum_of_squares_block() of the accumulator, in one pass over one block, with the
// same bits.
double accumulate_block(InstructionSet set, const Accumulation& block);

// GradientNorm: the root of the exact sum of the blocks' sums, in whatever order they come.
class GradientNorm {
 public:
  void add_blocks(std::span<const double> block_sums);
  void merge(const GradientNorm& other) { sum_.merge(other.sum_); }
  // False when any element is infinite or NaN.
  bool finite() const { return sum_.is_finite(); }
  double sum_of_squares() const { return sum_.value(); }
  const ExactSum& squares() const { return sum_; }
  // The norm of the gradients divided by `scale`.
  double norm(double scale = 1) const;

 private:
  ExactSum sum_;
};

// Convert element by element, with the one rounding of base/data_type.h; widening is exact. `from` and `to`
// do not overlap.
void convert_from_float(InstructionSet set, const float* from, std::byte* to, DataType type, size_t count);
void convert_to_float(InstructionSet set, const std::byte* from, DataType type, float* to, size_t count);

}  // namespace terrace
