// The quantization kernels of one instruction set; quantization.cpp chooses from them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/internal/gradient_kernels.h>

namespace terrace::kernels {

// By the type of the values. `codes` of kQuantizedBlock values are apart from their scale, a byte each.
struct QuantizationKernels {
  // Returns the scale.
  using Quantize = uint16_t (*)(const std::byte* values, uint32_t bits, int8_t* codes);
  // The scale is not that of NaN.
  using Dequantize = void (*)(const int8_t* codes, float step, std::byte* values);
  std::array<Quantize, kTypes> quantize;
  std::array<Dequantize, kTypes> dequantize;
};

// Null where this build has no such kernels (another processor family).
const QuantizationKernels* find_quantization_kernels(InstructionSet set);

// The implementations behind find_quantization_kernels().
extern const QuantizationKernels kScalarQuantization;
const QuantizationKernels* find_vector_quantization_kernels(InstructionSet set);

}  // namespace terrace::kernels
