// What happens to gradients and parameters outside the update itself: accumulation, the sum of squares behind
// the norm, conversion. Free functions over spans; no threads, no allocation. All give the same bits on every
// instruction set.
#pragma once

#include <cstddef>
#include <span>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

// accumulator[i] = to_float(gradient[i]) when `first`, else accumulator[i] += to_float(gradient[i]), in fp32.
// `gradient` is fp32 or bf16, of any alignment, and does not overlap the accumulator.
void accumulate(InstructionSet set, float* accumulator, const std::byte* gradient, DataType type,
                size_t count, bool first);

// The global norm is the sum over blocks of this many consecutive elements of the flat space, in block order.
inline constexpr size_t kSumBlockElements = 4096;

// Sum of squares of one block (count <= kSumBlockElements; the last block of a section may be short) in fp64,
// in an order that does not depend on the instruction set: 16 lanes start at 0; lane l adds the squares of
// the elements l, l + 16, l + 32, ... in that order; then lane i += lane i + 8 for i < 8, the same with 4, 2
// and 1; lane 0 is the sum. The square of an fp32 is exact in fp64 and the sum of a block cannot overflow: it
// is finite exactly when every element is.
double sum_of_squares_block(InstructionSet set, const std::byte* gradient, DataType type, size_t count);

struct GradientCheck {
  double sum_of_squares = 0;
  bool finite = true;  // false: an element is infinite or NaN
};
// Adds the sums of blocks in order. Divide the square root by the loss scale to get the norm of the true
// gradients.
GradientCheck check_gradients(std::span<const double> block_sums);

// Element-wise, with the one rounding of base/data_type.h. `from` and `to` do not overlap; `to_float` is
// exact.
void convert_to_bf16(InstructionSet set, const float* from, Bf16* to, size_t count);
void convert_to_float(InstructionSet set, const Bf16* from, float* to, size_t count);

}  // namespace terrace
