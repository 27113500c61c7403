// Text made safe to show on a screen. Names and values come from files that others wrote: a terminal must not
// obey them, and a reader must not take a part of them for a line of the program. Characters that a terminal
// would act on (controls, marks that change the direction of text, characters without width) are written as
// JSON escapes them, \u001b; bytes that are no UTF-8 become \x9b. Escaping text a second time changes
// nothing. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace terrace {

// Escapes a name or a value, newlines included.
std::string shown_line(std::string_view text);
// Escapes a message of the program. A newline stays only where two spaces follow, as before an advice, so
// that no part of the message can look like a message of its own.
std::string shown_message(std::string_view text);
// Escapes a text of several lines, whose newlines and tabs stay.
std::string shown_lines(std::string_view text);

}  // namespace terrace
