// What this program is and was built from.
#pragma once

#include <string>

namespace terrace {

// "terrace 0.1.0" and a line for each of: compiler, build, libraries.
std::string version_text();

}  // namespace terrace
