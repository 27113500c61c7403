// Flags of other trainers, and what does the same here.
#pragma once

#include <string_view>

namespace terrace {

// What to write instead of a flag of another trainer: a flag ("--lr"), or words where it is none. Empty for a
// flag that is not known here.
std::string_view synonym_of(std::string_view flag);

}  // namespace terrace
