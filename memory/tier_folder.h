// TierFolder: the one folder below a path of the user in which the files of the nvme tier live. One job at a
// time. It must never touch a file that is not of its own making, nor anything outside of its folder.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <terrace/base/log.h>

namespace terrace {

// <path>/terrace-tier, mode 0700:
//   lock          0600, held by flock while the job lives; its text is
//                 "pid <n>\nhost <name>\nstarted <UTC time>\n"
//   <name>.tier   0600, tier files; <name> is made of a-z, 0-9 and _
//
// A job that died leaves its files; the next one finds the lock free, removes files of exactly that form that
// end with the mark of a tier file, and says so. A file of a user's that only has such a name stays.
class TierFolder {
 public:
  // `path` must exist and be writable. Throws Error(io) when it is not, or when another job holds the lock
  // (naming its pid and host).
  TierFolder(const std::string& path, Log& log);
  // Removes the tier files, the lock and, when nothing else is in it, the folder. Not in a forked child.
  ~TierFolder();
  TierFolder(const TierFolder&) = delete;
  TierFolder& operator=(const TierFolder&) = delete;

  const std::string& path() const { return folder_; }  // "<path>/terrace-tier"
  // "<folder>/<name>.tier".
  std::string file_path(std::string_view name) const;

  // The last bytes of every tier file, written before anything else of it; page-aligned.
  static constexpr uint64_t kMarkBytes = 4096;
  static std::span<const std::byte, kMarkBytes> mark();

  // What an ordinary user may still write on this file system.
  uint64_t free_bytes() const;
  // Throws Error(capacity) naming `what`, the bytes needed and the bytes free.
  void require_free(uint64_t bytes, std::string_view what) const;

 private:
  // Both are false when the folder or its lock vanished meanwhile: try again from the start.
  bool open_folder();
  bool take_lock();
  void close_descriptors();
  void write_lock_text();
  struct Removed {
    uint64_t files = 0;
    uint64_t bytes = 0;
  };
  Removed remove_tier_files();
  bool has_mark(const char* name, uint64_t file_bytes) const;

  std::string folder_;
  Log& log_;
  int folder_fd_ = -1;
  int lock_fd_ = -1;
  pid_t owner_;
};

}  // namespace terrace
