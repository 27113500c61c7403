// Suggestions: what was probably meant by a key, a value or a word that nobody knows.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace terrace {

// For a key that `section` does not have: "did you mean ...?", "it belongs to ...", "set ... instead". Empty
// when nothing is near.
std::string suggestion_for(std::string_view section, std::string_view key);

// For a text that is none of the values of "a|b|c": "did you mean ...?". Empty when none is near.
std::string suggestion_among(std::string_view allowed, std::string_view text);

// Whether `key` is "enabled", misspelt.
bool is_nearly_enabled(std::string_view key);

// Insertions, deletions, replacements and swaps of neighbours that turn one into the other, in any case.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace terrace
