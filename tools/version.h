// The version of this program and of the libraries that it was built with.
#pragma once

#include <string>

namespace terrace {

// Returns "terrace 0.1.0", a line for compiler and build, and a line for the libraries.
std::string version_text();

}  // namespace terrace
