// Elements of any type at any address, for the tests.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <terrace/base/data_type.h>

namespace terrace {

inline constexpr DataType kEveryType[] = {DataType::fp32, DataType::bf16, DataType::fp16};

inline float element(const std::byte* from, DataType type, size_t index) {
  if (type == DataType::fp32) {
    float value;
    std::memcpy(&value, from + index * sizeof(value), sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from + index * sizeof(bits), sizeof(bits));
  return type == DataType::bf16 ? to_float(Bf16{bits}) : to_float(Fp16{bits});
}

inline void set_element(std::byte* to, DataType type, size_t index, float value) {
  if (type == DataType::fp32) {
    std::memcpy(to + index * sizeof(value), &value, sizeof(value));
    return;
  }
  const uint16_t bits = type == DataType::bf16 ? to_bf16(value).bits : to_fp16(value).bits;
  std::memcpy(to + index * sizeof(bits), &bits, sizeof(bits));
}

// `value` after a trip through `type`.
inline float rounded(float value, DataType type) {
  std::byte bytes[sizeof(float)];
  set_element(bytes, type, 0, value);
  return element(bytes, type, 0);
}

// The same bits.
inline bool identical(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// The same bits, or both NaN (which NaN is not specified).
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || identical(a, b);
}

}  // namespace terrace
