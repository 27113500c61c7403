// The kernels of one instruction set as tables of plain functions: what the public functions of this folder
// choose from. A new optimizer adds its own table here.
#pragma once

#include <array>
#include <cstddef>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/adam.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace::kernels {

// Consecutive elements: each pointer at the first of `count`.
struct AdamRun {
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  const std::byte* gradients;
  std::byte* parameters;
  size_t count;
  // Where the caller goes on after this run: bytes between the end of each of the three record arrays and the
  // place where that array continues. Only prefetches use it.
  size_t continuation_gap_bytes;
};
using AdamKernel = void (*)(const AdamStep&, const AdamRun&);

// Tables are indexed by element type: 0 = fp32, 1 = bf16.
constexpr size_t table_index(DataType type) {
  return type == DataType::bf16 ? 1 : 0;
}
constexpr bool has_table_index(DataType type) {
  return type == DataType::fp32 || type == DataType::bf16;
}

struct AdamKernels {
  // [gradient type][parameter type][decoupled decay]
  std::array<std::array<std::array<AdamKernel, 2>, 2>, 2> update;
};

// The squares of one block are summed in this many lanes (gradient.h).
inline constexpr size_t kSumLanes = 16;
using SumLanes = std::array<double, kSumLanes>;

struct GradientKernels {
  // By the gradient's type.
  std::array<void (*)(float* accumulator, const std::byte* gradient, size_t count), 2> add;
  // Element i goes to lane i % kSumLanes.
  std::array<void (*)(SumLanes& lanes, const std::byte* gradient, size_t count), 2> add_squares;
  void (*to_bf16)(const float* from, Bf16* to, size_t count);
  void (*to_float)(const std::byte* from_bf16, float* to, size_t count);
};

// Null where this build has no such kernels (another processor family).
const AdamKernels* find_adam_kernels(InstructionSet set);
const GradientKernels* find_gradient_kernels(InstructionSet set);
bool compiled_in(InstructionSet set);

// The implementations behind the two functions above.
extern const AdamKernels kScalarAdam;
extern const GradientKernels kScalarGradient;
const AdamKernels* find_vector_adam_kernels(InstructionSet set);
const GradientKernels* find_vector_gradient_kernels(InstructionSet set);

}  // namespace terrace::kernels
