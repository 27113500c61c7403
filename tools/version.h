// The version of this program and of the parts that it was built from.
#pragma once

#include <string>

namespace terrace {

// Returns "terrace 0.1.0" and a line for each of: compiler, build, libraries.
std::string version_text();

}  // namespace terrace
