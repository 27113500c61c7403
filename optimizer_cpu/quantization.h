// Quantization: numbers as integers of 8 or 4 bits with one scale for every 64 of them, so that fewer bytes
// cross between hosts. They are free functions over whole blocks, without threads or allocation, and give the
// same bits on every instruction set.
//
// A block is 64 neighbours of the flat space, where tensors are aligned to as many, so no block holds numbers
// of two tensors. With L = 127 levels for 8 bits and 7 for 4
//
//   largest = the largest magnitude of the block as bf16, by to_bf16(), but at most the largest bf16 number
//             that the numbers' type can hold; 0 where it is below 2^-100
//   code    = value * (L / largest) to the nearest integer, ties to even, and between -L and L
//   value'  = code * (largest / L), rounded to the type that it is written in
//
// each operation in fp32, rounded once; codes of a block whose largest is 0 are 0. In a block with a number
// that is not finite all are NaN.
//
// Quantizing value' again gives the same codes and the same scale, in whatever type value' was written: 127
// times half an ulp of bf16 is less than half a step, and the largest magnitude stays what it is. So what was
// rounded once travels as codes without another loss.
//
// The form is that of symmetric block quantization, as in Dettmers et al., arXiv:2110.02861, and in ZeRO++,
// Wang et al., arXiv:2306.10209, with a smaller block.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

inline constexpr uint64_t kQuantizedBlock = 64;  // elements

// A block is its scale, the bits of `largest`, and then its codes. With 4 bits byte i has the codes i, in its
// lower half, and i + 32. `count` is a multiple of kQuantizedBlock.
constexpr uint64_t quantized_bytes(uint64_t count, uint32_t bits) {
  return count / kQuantizedBlock * (sizeof(uint16_t) + kQuantizedBlock * bits / 8);
}

// What `count` values take where they cross to other ranks: as codes of `bits`, or with 0 in their type.
constexpr uint64_t crossing_bytes(uint64_t count, DataType type, uint32_t bits) {
  return bits > 0 ? quantized_bytes(count, bits) : count * bytes_of(type);
}

// `bits` is 8 or 4. Addresses need no alignment; the two arrays do not overlap.
void quantize(InstructionSet set, uint32_t bits, const std::byte* values, DataType type, uint64_t count,
              std::byte* codes);
void dequantize(InstructionSet set, uint32_t bits, const std::byte* codes, std::byte* values, DataType type,
                uint64_t count);
// Both, one after the other: writes value' of every value. The arrays are one, of one type, or do not
// overlap. A last block that is not whole is rounded as if zeros followed.
void round_to_quantized(InstructionSet set, uint32_t bits, const std::byte* values, DataType type,
                        std::byte* rounded, DataType rounded_type, uint64_t count);

// The arithmetic of an element, for all kernels.
namespace kernels {

constexpr int32_t levels_of(uint32_t bits) {
  return bits == 8 ? 127 : 7;
}

// The bits of `largest` from those of the largest magnitude.
constexpr uint16_t scale_of(uint32_t magnitude_bits, DataType type) {
  if (magnitude_bits >= 0x7f800000u) return 0x7fc0u;
  if (magnitude_bits < 0x0d800000u) return 0;  // 2^-100
  const uint32_t most = type == DataType::fp16 ? 0x477fu : 0x7f7fu;
  return static_cast<uint16_t>(std::min((magnitude_bits + 0x8000u) >> 16, most));
}
constexpr bool is_nan_scale(uint16_t scale) {
  return scale > 0x7f80u;
}
constexpr float largest_of(uint16_t scale) {
  return std::bit_cast<float>(uint32_t{scale} << 16);
}

// `inverse_step` is levels / largest.
constexpr float code_of(float value, float inverse_step, float levels) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the lowest bits
  const float code = (value * inverse_step + magic) - magic;
  return code < -levels ? -levels : code > levels ? levels : code;
}

}  // namespace kernels
}  // namespace terrace
