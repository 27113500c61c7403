// AsideFile: a new file that others find only whole. It is written under another name in the same folder, and
// publish() gives it its own. Destroyed before that, it removes what was written.
//
// One thread at a time, and one writer of a path unless their suffixes differ. Errors are Error(io), or
// Error(capacity) where a disk is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <terrace/aio/file.h>

namespace terrace::io {

struct AsideOptions {
  std::string suffix = ".new";  // of the other name; what a dead process left under it is removed
  // The file has the permissions of the one that it replaces, or of any new file of the user, and it replaces
  // only regular files. Otherwise its mode is 0600.
  bool for_the_user = false;
  std::string what = "the file";  // in errors: "cannot write the file"
  std::string advice;             // in errors, but where the disk is full
  FileEvents* events = nullptr;   // outlives the file
};

class AsideFile {
 public:
  AsideFile(std::filesystem::path path, AsideOptions options);
  ~AsideFile();
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;

  // For everything but writing: its space, its lock. Its path is the other name.
  File& file() { return file_; }
  void write(uint64_t offset, std::span<const std::byte> bytes);
  // Makes what was written durable, under the other name. publish() does so too.
  void sync();
  // Puts the file in its place without waiting for the disk: after a power cut it may be there, empty.
  void publish_undurably();
  // Puts the file in its place, so that after a crash at any instruction the path holds the earlier file or
  // this one.
  void publish();

 private:
  [[noreturn]] void fail(const std::filesystem::path& path, int error) const;
  [[noreturn]] void fail(const Error& error) const;
  void remove_what_is_left() const;
  File open() const;

  const std::filesystem::path path_;
  const AsideOptions options_;
  const std::filesystem::path aside_;
  File file_;
  bool is_synced_ = false;
  bool is_published_ = false;
};

}  // namespace terrace::io
