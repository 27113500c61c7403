// number_of_digits: numbers of variables, of file names and of files of the system, which are digits and
// nothing else.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace terrace {

// Nothing if the text is empty, has anything but digits of the base, or the number needs more bits.
// Thread-safe.
template <std::unsigned_integral Number = uint64_t>
std::optional<Number> number_of_digits(std::string_view text, int base = 10) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace terrace
