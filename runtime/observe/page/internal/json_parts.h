// What the parts of a page's JSON are made with.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include <terrace/runtime/config/json/json_document.h>

namespace terrace::page_json {

inline constexpr size_t kLongestText = 4000;  // bytes; what is longer is cut

inline std::string text_json(std::string_view text) {
  return json_quoted(text, kLongestText);
}

inline std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

// [a,b,...] of what `text` makes of each item.
template <typename Items, typename Text>
std::string list(const Items& items, Text text) {
  std::string joined;
  for (const auto& item : items) {
    if (!joined.empty()) joined += ',';
    joined += text(item);
  }
  return "[" + joined + "]";
}

}  // namespace terrace::page_json
