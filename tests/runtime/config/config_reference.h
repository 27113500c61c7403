// docs/config.md as the schema makes it.
#pragma once

#include <string>

namespace terrace::testing {

// Returns the page: every known key with its type, default and effect.
std::string config_reference_markdown();

}  // namespace terrace::testing
