// Element types of the flat space and the one conversion from fp32 to each narrower type. The vector kernels
// give the bits of these functions; there must never be a second rounding rule.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace {

enum class DataType : uint8_t { fp32, bf16, fp16 };

constexpr size_t bytes_of(DataType type) {
  return type == DataType::fp32 ? 4 : 2;
}
constexpr std::string_view name_of(DataType type) {
  return type == DataType::fp32 ? "fp32" : type == DataType::bf16 ? "bf16" : "fp16";
}

// bfloat16: the upper half of an fp32.
struct Bf16 {
  uint16_t bits = 0;
};
static_assert(sizeof(Bf16) == 2);

constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
constexpr float to_float(float value) {
  return value;
}

// Rounds to nearest, ties away from zero (one rule everywhere, so that master = bf16 + int16 remainder is
// lossless). NaN stays NaN (quieted, its sign kept); denormals are kept; overflow rounds to infinity.
constexpr Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  return Bf16{static_cast<uint16_t>((bits + 0x8000u) >> 16)};
}

// Whether the number is finite and stays so in `type`.
constexpr bool fits(float value, DataType type) {
  // Half way from the largest number to the next power of two, and everything above, rounds to infinity.
  const uint32_t infinite = type == DataType::fp32   ? 0x7f800000u
                            : type == DataType::bf16 ? 0x7f7f8000u
                                                     : 0x477ff000u;
  return (std::bit_cast<uint32_t>(value) & 0x7fffffffu) < infinite;
}

// IEEE 754 binary16: 5 bits of exponent, 10 of mantissa; the largest number is 65504, the smallest 2^-24.
struct Fp16 {
  uint16_t bits = 0;
};
static_assert(sizeof(Fp16) == 2);

// The conversion is exact; a signalling NaN becomes quiet, as with the processors' F16C instructions.
constexpr float to_float(Fp16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  uint32_t bits;
  if (magnitude < 0x0400u) {  // zero and denormals, in units of 2^-24
    bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  } else if (magnitude < 0x7c00u) {
    bits = (magnitude << 13) + ((127u - 15u) << 23);
  } else {
    bits = 0x7f800000u | (magnitude << 13) | (magnitude > 0x7c00u ? 0x00400000u : 0u);
  }
  return std::bit_cast<float>(sign | bits);
}

// Rounds to nearest, ties to even. Denormals are kept; 65520 and above become infinity; NaN stays NaN
// (quieted, with its sign and the upper bits of its payload). The result is that of F16C, bit for bit.
constexpr Fp16 to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520, half way between 65504 and 65536
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: 0.5 has the place value 2^-24, so the addition rounds
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    half = (magnitude - ((127u - 15u) << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return Fp16{static_cast<uint16_t>(sign | half)};
}

}  // namespace terrace
