// Element types of the flat space and the one conversion from fp32 to bf16.
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

// Nearest, ties away from zero (one rule everywhere, so that master = bf16 + int16 remainder is lossless);
// NaN stays NaN (quieted, its sign kept); denormals are kept; overflow rounds to infinity.
constexpr Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  return Bf16{static_cast<uint16_t>((bits + 0x8000u) >> 16)};
}

}  // namespace terrace
