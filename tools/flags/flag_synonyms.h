// Flags of other trainers, and their equivalents here.
#pragma once

#include <string_view>

namespace terrace {

// Returns the replacement for a flag of another trainer: a flag ("--lr"), or words if no flag fits. Returns
// an empty text for an unknown flag.
std::string_view synonym_of(std::string_view flag);

}  // namespace terrace
