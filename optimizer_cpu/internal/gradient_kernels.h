// The gradient kernels of one instruction set, as a table of plain functions; gradient.cpp chooses from it.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace::kernels {

// Tables are indexed by element type, in the order of DataType.
inline constexpr size_t kTypes = 3;
constexpr size_t index_of(DataType type) {
  return static_cast<size_t>(type);
}
// The index of a C++ type: float, Bf16 or Fp16.
template <typename T>
inline constexpr size_t kIndexOf = index_of(std::is_same_v<T, float>  ? DataType::fp32
                                            : std::is_same_v<T, Bf16> ? DataType::bf16
                                                                      : DataType::fp16);
static_assert(index_of(DataType::fp16) + 1 == kTypes);

// The squares of one block are summed in this many lanes (gradient.h).
inline constexpr size_t kSumLanes = 16;
using SumLanes = std::array<double, kSumLanes>;

struct GradientKernels {
  using Add = void (*)(std::byte* accumulator, const std::byte* gradient, size_t count);
  using AddSquares = void (*)(SumLanes& lanes, const std::byte* gradient, size_t count);
  using AddAndSquare = void (*)(SumLanes& lanes, std::byte* accumulator, const std::byte* gradient,
                                size_t count);
  using Convert = void (*)(const std::byte* from, std::byte* to, size_t count);

  std::array<Add, kTypes> add;                 // into fp32, by the gradient's type
  std::array<Add, kTypes> add_same;            // into the gradient's own type
  std::array<AddSquares, kTypes> add_squares;  // element i goes to lane i % kSumLanes
  // These add and square in one pass: the squares are those of the new sums.
  std::array<AddAndSquare, kTypes> add_and_square;
  std::array<AddAndSquare, kTypes> add_and_square_same;
  std::array<Convert, kTypes> narrow;  // from fp32, by the target's type
  std::array<Convert, kTypes> widen;   // to fp32, by the source's type
};

// Null where this build has no such kernels (another processor family).
const GradientKernels* find_gradient_kernels(InstructionSet set);

// The implementations behind find_gradient_kernels().
extern const GradientKernels kScalarGradient;
const GradientKernels* find_vector_gradient_kernels(InstructionSet set);

}  // namespace terrace::kernels
