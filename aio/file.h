// File: one open file of a tier or a checkpoint, and the small helpers for files that are read and written
// whole. It must never transfer bulk data, which an Engine does through fd(). Errors are Error(io), or
// Error(capacity) where a file system is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/file_events.h>
#include <terrace/base/error.h>

namespace terrace::io {

enum class FileAccess : uint8_t { read, write, read_write };

struct FileOptions {
  FileAccess access = FileAccess::read;
  bool create = false;           // a new file; one that exists already is an error
  uint32_t mode = 0600;          // of a new file, less the umask
  bool direct = false;           // past the page cache (O_DIRECT), where the file system has that
  bool no_follow = true;         // a symbolic link as the last part of the path is an error
  FileEvents* events = nullptr;  // hears of create, resize and sync; outlives the file
};

// Owns a descriptor of a regular file, closed on exec. Movable; one thread at a time, but any number of
// engines may use fd() meanwhile. A file that was moved from may only be destroyed or assigned to.
class File {
 public:
  static File open(const std::filesystem::path& path, const FileOptions& options);
  // For plans: names a file without making it. Nothing can be transferred through its descriptor.
  static File without_file(const std::filesystem::path& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }

  // Whether transfers go past the page cache. When the system refuses that, the file works buffered and
  // direct_refusal() is the reason, for the caller to warn once.
  bool direct() const { return direct_; }
  const std::string& direct_refusal() const { return direct_refusal_; }
  // Addresses, offsets and sizes of transfers must be multiples of this; 1 for a buffered file.
  uint64_t alignment_bytes() const { return alignment_bytes_; }

  uint64_t size_bytes() const;
  // New space reads as zeros and takes no space on the drive until it is written.
  void resize(uint64_t bytes);
  // Makes the file at least `bytes` long with space on the drive for all of it, or throws Error(capacity)
  // with the free space and leaves it as it was. Returns false when the file system cannot reserve space:
  // then only the size is set, and the space was free just now.
  bool preallocate(uint64_t bytes);
  // Returns when the data, and the metadata needed to read it back, are on the drive.
  void sync();
  // Gives the file another name. Throws Error(io) when something has that name. The name is durable once the
  // folder is.
  void rename(const std::filesystem::path& to);
  // Throws Error(io) when path() no longer leads to this file, because somebody removed it or put another in
  // its place.
  void require_named() const;
  // Takes the exclusive lock of this file until it is closed. Returns false when another open file has it, in
  // this process or another. A process that dies leaves no lock.
  bool try_lock();

 private:
  File(int fd, std::filesystem::path path, FileEvents* events)
      : fd_(fd), path_(std::move(path)), events_(events) {}
  void go_direct();
  [[noreturn]] void fail(const std::string& what_failed, int error, const std::string& advice = "") const;

  int fd_ = -1;
  std::filesystem::path path_;
  FileEvents* events_ = nullptr;
  bool direct_ = false;
  std::string direct_refusal_;
  uint64_t alignment_bytes_ = 1;
};

// Fills `bytes` from `offset` on; thread-safe. Throws Error(io) where the system refuses or the file ends,
// with `advice`.
void read_exactly(const File& file, uint64_t offset, std::span<std::byte> bytes, std::string_view advice);

// Bytes an ordinary user can still write to the file system that holds `path`.
uint64_t free_bytes_at(const std::filesystem::path& path);

// The Error to throw for a failed completion: operation, path, offset, bytes and the system's words.
Error describe_failure(const Request& request, const Completion& completion,
                       const std::filesystem::path& path);

// Replaces or creates `path` so that after a crash at any instruction it holds either the old bytes or the
// new ones: it writes "<path>.new" (removing one of a dead process), fsyncs, renames, and fsyncs the folder.
// The file has mode 0600. A path may have one writer at a time.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes,
                           FileEvents* events = nullptr);

// Returns when the names in this folder are on the drive.
void sync_folder(const std::filesystem::path& folder, FileEvents* events = nullptr);

// Reads a regular file of at most `max_bytes`; a longer one is an Error(io) before anything is read.
std::vector<std::byte> read_whole_file(const std::filesystem::path& path, uint64_t max_bytes);
std::string read_whole_text(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace terrace::io
