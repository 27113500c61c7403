// NamedFolders: the sub-folders of OffloadOptions::tier_name while an Offloader lives. It must never remove a
// folder that it did not make, nor one with anything in it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/offload/options/offload_options.h>

namespace terrace {

class NamedFolders {
 public:
  // Makes those that are missing, mode 0700; none without a name and in a dry run. The options are those of
  // the embedding program. Throws Error(io). `log` and options.hooks.file_events outlive this.
  NamedFolders(const OffloadOptions& options, Log& log);
  // Removes those that it made and that are empty. In a forked child it does nothing.
  ~NamedFolders();
  NamedFolders(const NamedFolders&) = delete;
  NamedFolders& operator=(const NamedFolders&) = delete;

 private:
  void make(const std::filesystem::path& folder);
  void remove_empty();

  Log& log_;
  io::FileEvents* events_;
  pid_t owner_;
  std::vector<std::filesystem::path> made_;
};

}  // namespace terrace
