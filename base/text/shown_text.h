// Text as it may reach a screen. Names and values come out of files that others wrote: a terminal must not
// obey them, and no reader take a part of them for a line of the program. What a terminal would act on
// (controls, marks that change the direction of text, characters without width) is written as JSON escapes
// it, \u001b; bytes that are no UTF-8 become \x9b. Text that was made so stays as it is when it is made so
// again. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace terrace {

// A name or a value: newlines are escaped too.
std::string shown_line(std::string_view text);
// A message of the program: a newline stays where two spaces follow, as before an advice, so that no part of
// it can look like a message of its own.
std::string shown_message(std::string_view text);
// A text of several lines: newlines and tabs stay.
std::string shown_lines(std::string_view text);

}  // namespace terrace
