// The folder of the checkpoints of a run: names in it, who may save there, and how a new checkpoint takes its
// place. Nothing here reads or writes a byte of state. A folder `<dir>` holds
//
//   step-00000020            a checkpoint
//   .step-00000020.partial   one being saved, or one on its way out
//   .step-00000020.replaced  one that another of its step replaces, where names cannot be exchanged
//   latest                   the name of the newest
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/log.h>

namespace terrace::checkpoint {

inline constexpr const char* kLatestName = "latest";

// At least eight digits: step 20 is "step-00000020".
std::string step_name(uint64_t step);
bool is_step_name(std::string_view name);
// "step-00000020" -> 20.
std::optional<uint64_t> step_of(std::string_view name);

// The checkpoint that is meant by `path`: a step's folder itself, or the one that `latest` in it names.
// Throws Error(io) when there is none and Error(corrupt) when `latest` names nothing; naming the checkpoints
// that exist.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// The right to save into a folder, held for the time of one save.
class SaveFolder {
 public:
  // Makes the folder when it is missing, takes its lock, and brings it in order after jobs that died:
  // unfinished checkpoints are removed and one that was being replaced gets its name back. Throws Error(io)
  // when the folder cannot be used or another job is saving there.
  SaveFolder(std::filesystem::path folder, Log& log);
  ~SaveFolder();
  SaveFolder(const SaveFolder&) = delete;
  SaveFolder& operator=(const SaveFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path final_path(uint64_t step) const { return path_ / step_name(step); }
  std::filesystem::path partial_path(uint64_t step) const {
    return path_ / ("." + step_name(step) + ".partial");
  }
  std::filesystem::path replaced_path(uint64_t step) const {
    return path_ / ("." + step_name(step) + ".replaced");
  }

  // Returns when the names in the folder are on the device.
  void sync() const;

 private:
  void open_and_lock();
  void clean();

  std::filesystem::path path_;
  Log& log_;
  int fd_ = -1;
};

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

// A new folder of mode 0700.
void make_folder(const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& path);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Swaps two names in one instant; false when the file system cannot.
bool exchange_paths(const std::filesystem::path& one, const std::filesystem::path& other);

}  // namespace terrace::checkpoint
