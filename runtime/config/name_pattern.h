// Patterns over the names of weights and modules, as people write them in configurations: "h.*.attn.*",
// "*.q_proj". A star stands for any text (dots included), a question mark for one character, [0-3a] for one
// of the listed characters and [!0-3a] for one of all others; any other character stands for itself. A
// pattern matches a whole name or nothing.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace terrace {

bool matches_pattern(std::string_view pattern, std::string_view name);
// Returns the fewest characters to insert, delete or replace in the pattern until it matches.
size_t pattern_distance(std::string_view pattern, std::string_view name);
bool matches_any(std::span<const std::string> patterns, std::string_view name);

}  // namespace terrace
