// DiskLog: what this process does to the files below one folder, in order, as the system calls were made: it
// stands between the program and the C library, so that no code under test reports for itself. Transfers
// through io_uring and libaio pass it by: use the engine `threads`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::power_cut {

enum class DiskOp : uint8_t {
  folder_made,
  file_made,
  resized,
  write_begins,
  write_ends,
  sync_begins,
  sync_ends,  // successfully
  renamed,
  exchanged,
  removed,
  folder_synced,
  marked,  // by the test
};

struct DiskEvent {
  DiskOp op;
  std::string path;  // below the folder, relative; the text of a mark
  std::string to;    // of renamed, exchanged
  uint64_t offset = 0;
  uint64_t bytes = 0;   // of resized, and of write_ends: really written
  uint64_t number = 0;  // pairs the beginning of a write or sync with its end
  std::vector<std::byte> data = {};
};

// One at a time in a process. Begins with its construction; the folder is empty then.
class DiskLog {
 public:
  explicit DiskLog(const std::filesystem::path& folder);
  ~DiskLog();
  DiskLog(const DiskLog&) = delete;
  DiskLog& operator=(const DiskLog&) = delete;

  void mark(std::string text);
  // Nothing is logged any more.
  std::vector<DiskEvent> stop();

  // For the system calls; thread-safe. A number of 0 means that it is nothing of ours.
  static DiskLog* active();
  // The path below the folder; empty for any other.
  std::string below(int folder_fd, const char* path) const;
  std::string below(int fd) const;
  void add(DiskEvent event);
  uint64_t begin(DiskOp op, std::string path, uint64_t offset = 0, std::span<const std::byte> data = {});
  void end(DiskOp op, const std::string& path, uint64_t number, uint64_t bytes = 0);

 private:
  std::string relative(const std::string& path) const;

  const std::string folder_;
  mutable std::mutex mutex_;
  std::vector<DiskEvent> events_;
  uint64_t next_number_ = 1;
};

}  // namespace terrace::power_cut
