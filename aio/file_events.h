// FileEvents: hears of everything that changes what a drive would hold after a power cut. Tests that simulate
// one use it; it is null everywhere else. It must never be asked for a decision: it only listens.
//
// Every call but sync_begins() comes after the system said that the operation succeeded, on the thread that
// made it; several threads may call at once. Transfers of an Engine are not reported here; a decorator of the
// engine sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace terrace::io {

class FileEvents {
 public:
  using Path = std::filesystem::path;

  virtual ~FileEvents() = default;

  virtual void folder_created(const Path& path) = 0;
  virtual void created(const Path& path) = 0;  // an empty file
  virtual void resized(const Path& path, uint64_t bytes) = 0;
  virtual void written(const Path& path, uint64_t offset, std::span<const std::byte> bytes) = 0;
  // A sync makes durable the writes before sync_begins(); synced() says that it has ended.
  virtual void sync_begins(const Path& path) = 0;
  virtual void synced(const Path& path) = 0;
  virtual void renamed(const Path& from, const Path& to) = 0;
  virtual void removed(const Path& path) = 0;  // a file, or an empty folder
  // The names in this folder are durable.
  virtual void folder_synced(const Path& path) = 0;
};

}  // namespace terrace::io
