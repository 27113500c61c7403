// What is thrown for training data that cannot be read or used. Nothing but words.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::data {

inline constexpr const char* kCheckFileSystem = "check the file system";

// Error(io): the system refused.
[[noreturn]] void cannot_read(const std::filesystem::path& path, const std::string& reason,
                              const std::string& advice);
// Error(config): it is there, and it is not what it must be.
[[noreturn]] void cannot_use(const std::filesystem::path& path, const std::string& reason,
                             const std::string& advice);

}  // namespace terrace::data
