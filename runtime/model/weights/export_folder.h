// ExportFolder: a folder of weights for others appears whole or not at all: it is written beside its name and
// renamed at the end. It must never replace files that no export wrote.
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
  // `target` does not exist, is an empty folder, or is an earlier export that `replace` allows to replace;
  // else Error(config). Makes the folder to write into, removing what a dead job left there. `log` outlives
  // this.
  ExportFolder(const std::filesystem::path& target, bool replace, Log& log);
  // Removes what was not committed.
  ~ExportFolder();
  ExportFolder(const ExportFolder&) = delete;
  ExportFolder& operator=(const ExportFolder&) = delete;

  const std::filesystem::path& target() const { return target_; }
  // Where files are written until then.
  const std::filesystem::path& path() const { return partial_; }
  void write_text(const std::string& name, const std::string& text) const;
  // Copies those of these files that `source` has.
  void copy_existing(const std::filesystem::path& source, const std::vector<std::string>& names) const;

  // Everything is written: adds the list of files by which an export is known, with the step that it is of,
  // and gives the folder its name.
  void commit(std::optional<uint64_t> step = {});

 private:
  std::filesystem::path target_;
  std::filesystem::path partial_;
  Log& log_;
  bool committed_ = false;
};

// What the export in a folder was committed with; nothing where none is whole there.
std::optional<uint64_t> step_of_export(const std::filesystem::path& folder);

}  // namespace terrace
