// A small file of text that is read as a whole, such as a configuration. A pipe may stand in its place.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>

namespace terrace {

// Returns the bytes of the file, or those that are written to a pipe until its writers close it. A pipe that
// nobody writes to is waited for no longer than two seconds. Calls `fail`, which throws, with the reason if
// the bytes cannot be read, if they are more than `most_bytes`, or if a pipe gives none.
std::string text_of_file(const std::filesystem::path& path, size_t most_bytes,
                         FunctionRef<void(const Reason&)> fail);

}  // namespace terrace
