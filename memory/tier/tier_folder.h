// TierFolder: the one folder below a path of the user in which the files of the nvme tier live, held by one
// job at a time. It must never touch a file that Terrace did not make, nor anything outside of its folder.
// TierSpace decides which of the files may go.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <terrace/base/log.h>

namespace terrace {

namespace io {
class FileEvents;
}

// <path>/terrace-tier, mode 0700:
//   lock          0600, held by flock while the job lives; its text is
//                 "pid <n>\nhost <name>\nstarted <UTC time>\n", and nothing depends on it
//   space         0600, the label: which folder of which space this is
//   <name>.tier   0600, tier files; <name> is made of a-z, 0-9 and _
//   commit-<16 digits>.manifest, .retained   0600, commits; earlier ones begin with "epoch-"
// docs/nvme_format.md describes them byte by byte. A user's file that merely has such a name is left alone.
class TierFolder {
 public:
  // `path` must exist and be writable. Removes nothing. Throws Error(io) when it cannot be used, or when
  // another job holds the lock (naming its pid and host) or this process does; a folder that it has made is
  // gone then. `events` outlives the folder.
  TierFolder(const std::string& path, Log& log, io::FileEvents* events = nullptr);
  // Unlocks the folder. Unless files are kept, it removes them, the lock and, when nothing else is in it, the
  // folder. In a forked child it does nothing of this.
  ~TierFolder();
  TierFolder(const TierFolder&) = delete;
  TierFolder& operator=(const TierFolder&) = delete;

  const std::string& path() const { return folder_; }  // "<path>/terrace-tier"
  bool was_made() const { return was_made_; }          // it was not there before
  int fd() const { return folder_fd_; }
  // "<folder>/<name>.tier".
  std::string file_path(std::string_view name) const;

  // Throws Error(io) unless the lock held here is still the one that another job would take.
  void require_held() const;

  void keep_files(bool keep) { keep_files_ = keep; }
  bool keeps_files() const { return keep_files_; }
  struct Removed {
    uint64_t files = 0;
    uint64_t bytes = 0;
  };
  // Removes the files that Terrace made, but for the lock: manifests first, so that no commit is ever there
  // without its blocks.
  Removed remove_files();
  // Removes only the manifests.
  Removed remove_manifests();

  // mark() is the last bytes of every tier file, written before anything else of it; page-aligned.
  static constexpr uint64_t kMarkBytes = 4096;
  static std::span<const std::byte, kMarkBytes> mark();

  // The bytes on the drive taken by all files in the tier folder of `path`, of any origin; 0 without a
  // folder.
  static uint64_t bytes_at(const std::filesystem::path& path);
  // The bytes that an ordinary user may still write on this file system.
  uint64_t free_bytes() const;
  // Throws Error(capacity) naming `what`, the bytes needed and the bytes free.
  void require_free(uint64_t bytes, std::string_view what) const;

 private:
  Removed remove_until(bool manifests_only);
  // Both return false when the folder or its lock vanished meanwhile: try again from the start.
  bool open_folder();
  void remove_folder();
  void remove_what_was_made();
  bool take_lock();
  bool lock_is_named() const;
  void close_descriptors();
  void write_lock_text();
  std::string folder_;
  Log& log_;
  io::FileEvents* events_;
  bool keep_files_ = false;
  bool was_made_ = false;
  bool is_locked_ = false;
  int folder_fd_ = -1;
  int lock_fd_ = -1;
  pid_t owner_;
};

}  // namespace terrace
