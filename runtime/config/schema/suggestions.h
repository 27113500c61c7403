// Suggestions: the likely meaning of a key, a value or a word that is not known.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace terrace {

// Returns a suggestion for a key that `section` does not have: "did you mean ...?", "it belongs to ...", "set
// ... instead". It is empty if nothing is near.
std::string suggestion_for(std::string_view section, std::string_view key);

// Returns "did you mean ...?" for a text that is none of the values of "a|b|c"; empty if none is near.
std::string suggestion_among(std::string_view allowed, std::string_view text);

// True if `key` is a misspelt "enabled".
bool is_nearly_enabled(std::string_view key);

// Counts the insertions, deletions, replacements and swaps of neighbours that turn one text into the other,
// ignoring case.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace terrace
