// Folders that others may find only whole: they are made under another name and take their place by a rename.
// A call that fails throws Error(io), or Error(capacity) where the disk is full, with the system's reason.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>

namespace terrace::io {

// Removes what lies at a path when it goes out of scope; whatever fails is a warning.
class RemovedAtEnd {
 public:
  RemovedAtEnd(std::filesystem::path path, Log& log) : path_(std::move(path)), log_(log) {}
  ~RemovedAtEnd();
  RemovedAtEnd(const RemovedAtEnd&) = delete;
  RemovedAtEnd& operator=(const RemovedAtEnd&) = delete;
  void remove_instead(std::filesystem::path path) { path_ = std::move(path); }

 private:
  std::filesystem::path path_;
  Log& log_;
};

// Whether a name exists; a link that leads nowhere does.
bool is_there(const std::filesystem::path& path);
// The names of a folder that `wanted` takes, sorted.
std::vector<std::string> names_in(const std::filesystem::path& folder,
                                  FunctionRef<bool(const std::string& name)> wanted);
// Throws what the system said of a folder.
[[noreturn]] void fail_folder(const std::string& what_failed, const std::filesystem::path& path, int error);

// A new folder of mode 0700.
void make_folder(const std::filesystem::path& path);
// Every missing folder of the path, each of them durable.
void make_folders(const std::filesystem::path& path);
// Makes what was written to the open folder durable.
void sync_descriptor(int fd, const std::filesystem::path& path);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Swaps two names in one instant; false when the file system cannot.
bool exchange_paths(const std::filesystem::path& one, const std::filesystem::path& other);

}  // namespace terrace::io
