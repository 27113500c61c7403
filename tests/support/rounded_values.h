// Numbers in the element types, for tests that run over all of them.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include <terrace/base/data_type.h>

namespace terrace::testing {

// The 16-bit element types by one name.
inline void round_to(float value, Bf16& to) {
  to = to_bf16(value);
}
inline void round_to(float value, Fp16& to) {
  to = to_fp16(value);
}
template <typename T>
std::vector<T> rounded_to(const std::vector<float>& values) {
  std::vector<T> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) round_to(values[i], halves[i]);
  return halves;
}
template <typename T>
constexpr DataType type_of(T /*element*/) {
  return std::is_same_v<T, float>  ? DataType::fp32
         : std::is_same_v<T, Bf16> ? DataType::bf16
                                   : DataType::fp16;
}

template <typename T>
std::vector<float> as_floats(const std::vector<T>& values) {
  std::vector<float> floats;
  for (const T value : values) floats.push_back(to_float(value));
  return floats;
}

}  // namespace terrace::testing
