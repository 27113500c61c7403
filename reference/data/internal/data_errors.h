// The errors for training data that cannot be read or used.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::data {

inline constexpr const char* kCheckFileSystem = "check the file system";

// Throws Error(io): the system refused.
[[noreturn]] void cannot_read(const std::filesystem::path& path, const Reason& reason, const Wording& advice);
// Throws Error(config): the data are there, but not as they must be.
[[noreturn]] void cannot_use(const std::filesystem::path& path, const Reason& reason, const Wording& advice);

// Throws Error(config) of a path with this status, which is no regular file.
[[noreturn]] void cannot_use_special(const std::filesystem::path& path,
                                     const std::filesystem::file_status& status, const std::string& advice);

}  // namespace terrace::data
