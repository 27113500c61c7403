// Text cut into lines between words, for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace terrace {

// Lines of at most `columns` columns (0: as long as they are); those after the first begin with `indent`
// blanks. `at` is where the first one begins. A line of the text that begins with a blank is an example, and
// stays whole.
std::string wrapped(std::string_view text, size_t at, size_t indent, size_t columns);

// The same for a message of the program, whose advice begins with two blanks on a line of its own, and
// commands with four: those stay whole, to be copied.
std::string wrapped_message(std::string_view message, size_t columns);

}  // namespace terrace
