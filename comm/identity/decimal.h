// decimal_number: the numbers of variables and hostfiles, which are decimal digits and nothing else.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace terrace {

// Nothing if the text is empty, has anything but digits, or the number needs more than 32 bits. Thread-safe.
inline std::optional<uint32_t> decimal_number(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace terrace
