// Loads and stores of one element of any type at any address, for the scalar kernels.
#pragma once

#include <cstddef>
#include <cstring>

#include <terrace/base/data_type.h>

namespace terrace::kernels {

template <typename T>
float load_element(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return to_float(value);
}

inline float rounded_to(float value, float /*element*/) {
  return value;
}
inline Bf16 rounded_to(float value, Bf16 /*element*/) {
  return to_bf16(value);
}
inline Fp16 rounded_to(float value, Fp16 /*element*/) {
  return to_fp16(value);
}

template <typename T>
void store_element(std::byte* to, size_t index, float value) {
  const T rounded = rounded_to(value, T{});
  std::memcpy(to + index * sizeof(T), &rounded, sizeof(T));
}

}  // namespace terrace::kernels
