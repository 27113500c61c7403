// The enumerators of an enum by their names, so that a list of cases made from it has whatever enumerator
// comes later.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace terrace::testing {

// The compiler's own words for the function: "... value = terrace::UpdateMode::next_forward ..." for an
// enumerator, and a number or a cast for any other value.
template <auto value>
constexpr std::string_view function_words() {
  return __PRETTY_FUNCTION__;
}

// Empty where no enumerator has this value.
template <auto value>
constexpr std::string_view enumerator_name() {
  std::string_view words = function_words<value>();
  words.remove_prefix(words.find("value = ") + 8);
  words = words.substr(0, words.find_first_of(";]"));
  // Clang writes "(anonymous namespace)", so a bracket alone does not tell a cast.
  words.remove_prefix(words.find_last_of(":)") + 1);
  const bool is_number = words[0] == '-' || (words[0] >= '0' && words[0] <= '9');
  return is_number ? std::string_view{} : words;
}

// How many enumerators there are, from 0 on without a gap.
template <typename Enum, size_t count = 0>
constexpr size_t enumerator_count() {
  if constexpr (enumerator_name<static_cast<Enum>(count)>().empty()) {
    return count;
  } else {
    return enumerator_count<Enum, count + 1>();
  }
}

template <typename Enum>
constexpr auto enumerator_names() {
  return []<size_t... index>(std::index_sequence<index...>) {
    return std::array<std::string_view, sizeof...(index)>{enumerator_name<static_cast<Enum>(index)>()...};
  }
  (std::make_index_sequence<enumerator_count<Enum>()>());
}

}  // namespace terrace::testing
