// Sizes and durations as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// "4096", "64KiB", "256 MiB", "1.5GiB", "2GB" (powers of 1000), "1g" (powers of 1024) -> bytes.
// Throws Error(config) naming `what` on anything else, on a negative value and on more than 2^63 bytes.
uint64_t parse_bytes(std::string_view text, std::string_view what);

// 1536 MiB -> "1.50 GiB"; below 1 KiB "n B".
std::string format_bytes(uint64_t bytes);

// 1234567 ns -> "1.23 ms".
std::string format_duration(uint64_t ns);

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr uint64_t divide_up(uint64_t value, uint64_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace terrace
