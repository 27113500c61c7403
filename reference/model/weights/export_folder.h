// ExportFolder: an exported folder of weights, which appears whole or not at all. It is written beside its
// final name and renamed at the end. It must never replace files that no export wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/log.h>

namespace terrace {

class ExportFolder {
 public:
  // `target` must not exist, be an empty folder, or be an earlier export while `replace` is true; else
  // Error(config). Makes the folder to write into, removing a partial export of a dead job. `log` outlives
  // this.
  ExportFolder(const std::filesystem::path& target, bool replace, Log& log);
  // Removes the folder if it was not committed.
  ~ExportFolder();
  ExportFolder(const ExportFolder&) = delete;
  ExportFolder& operator=(const ExportFolder&) = delete;

  const std::filesystem::path& target() const { return target_; }
  // The folder into which files are written before commit().
  const std::filesystem::path& path() const { return partial_; }
  void write_text(const std::string& name, const std::string& text) const;
  // Copies the listed files that `source` has.
  void copy_existing(const std::filesystem::path& source, const std::vector<std::string>& names) const;

  // Call when everything is written: adds the list of files that identifies an export, with its step, and
  // gives the folder its name.
  void commit(std::optional<uint64_t> step = {});

 private:
  std::filesystem::path target_;
  std::filesystem::path partial_;
  Log& log_;
  bool committed_ = false;
};

// Returns the step with which the export in a folder was committed; nothing if no whole export is there or it
// has none.
std::optional<uint64_t> step_of_export(const std::filesystem::path& folder);

}  // namespace terrace
