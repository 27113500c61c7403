// Helpers for folders that others may find only whole: such a folder is made under another name and takes its
// place by a rename. A call that fails throws Error(io), or Error(capacity) where the drive is full, with the
// system's reason.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>

namespace terrace::io {

// Removes the file or folder at a path, with everything in it, when it goes out of scope; a failure is a
// warning.
class RemovedAtEnd {
 public:
  RemovedAtEnd(std::filesystem::path path, Log& log) : path_(std::move(path)), log_(log) {}
  ~RemovedAtEnd();
  RemovedAtEnd(const RemovedAtEnd&) = delete;
  RemovedAtEnd& operator=(const RemovedAtEnd&) = delete;

 private:
  const std::filesystem::path path_;
  Log& log_;
};

// Whether a name exists; a broken link does. Throws where the system does not say.
bool is_there(const std::filesystem::path& path);
// Whether it is a folder, or a link to one. Throws where the system does not say.
bool is_folder(const std::filesystem::path& path);
// The names in a folder that `wanted` accepts, sorted.
std::vector<std::string> names_in(const std::filesystem::path& folder,
                                  FunctionRef<bool(const std::string& name)> wanted);
// Throws the Error for an operation on a folder that failed with this errno.
[[noreturn]] void fail_folder(const std::string& what_failed, const std::filesystem::path& path, int error);

// Creates a folder with mode 0700.
void make_folder(const std::filesystem::path& path);
// Creates every missing folder of the path, each of them durable.
void make_folders(const std::filesystem::path& path);
// Makes the names in the open folder durable.
void sync_descriptor(int fd, const std::filesystem::path& path);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Swaps two names in one instant. Returns false when the file system cannot.
bool exchange_paths(const std::filesystem::path& one, const std::filesystem::path& other);

}  // namespace terrace::io
