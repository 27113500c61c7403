// Breaks text into lines between words, for a terminal, and joins words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// Returns lines of at most `columns` columns (0: no limit); lines after the first begin with `indent` blanks.
// `at` is the column at which the first one begins. A line of the text that begins with a blank is an
// example, and stays whole.
std::string wrapped(std::string_view text, size_t at, size_t indent, size_t columns);

// Wraps a message of the program. Its advice begins with two blanks on a line of its own; commands begin with
// four and stay whole, so that they can be copied.
std::string wrapped_message(std::string_view message, size_t columns);

std::string joined(const std::vector<std::string>& words, const char* between);

}  // namespace terrace
