// Conversion of the numbers of weight files to fp32 and back, a run at a time. Both sides are little-endian.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

#include <terrace/base/data_type.h>

namespace terrace::weights {

static_assert(std::endian::native == std::endian::little, "weight files hold the bytes of memory");

// Returns the last bytes of `values`, which receive the bytes of values.size() elements of `type` before
// widen_in_place() turns them into numbers.
inline std::span<std::byte> narrow_part(DataType type, std::span<float> values) {
  return std::as_writable_bytes(values).last(values.size() * bytes_of(type));
}

// Element i is written to bytes [4i, 4i + 4), which never overlap an element that is still to be read.
template <typename Narrow>
void widen_in_place(std::span<float> values) {
  static_assert(sizeof(Narrow) == 2);
  const auto* source = reinterpret_cast<const std::byte*>(values.data()) + values.size() * sizeof(Narrow);
  for (size_t i = 0; i < values.size(); ++i) {
    Narrow narrow;
    std::memcpy(&narrow, source + i * sizeof(Narrow), sizeof(Narrow));
    values[i] = to_float(narrow);
  }
}

// Calls body(bytes) with the elements rounded to `type`, some at a time.
template <typename Body>
void for_each_narrow_run(DataType type, std::span<const float> values, Body body) {
  if (type == DataType::fp32) return body(std::as_bytes(values));
  std::array<uint16_t, 2048> run;
  while (!values.empty()) {
    const size_t count = std::min(run.size(), values.size());
    for (size_t i = 0; i < count; ++i)
      run[i] = type == DataType::bf16 ? to_bf16(values[i]).bits : to_fp16(values[i]).bits;
    body(std::as_bytes(std::span(run).first(count)));
    values = values.subspan(count);
  }
}

}  // namespace terrace::weights
