// NamedFolders: the sub-folders of OffloadOptions::tier_name while an Offloader lives. It must never remove a
// folder that Terrace did not make, nor one that another Offloader uses or that has anything in it.
//
// A job that is killed leaves the folder that it made. So that a later job knows it for one that it may
// remove, it is made with a mode that nobody gives to a folder otherwise, in the call that makes it: kMode.
// Every Offloader holds a shared lock (flock) on its folders, and removes one when nobody else does.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/offload/options/offload_options.h>

namespace terrace {

class NamedFolders {
 public:
  // For its owner alone, and the sticky bit, which changes nothing there.
  static constexpr mode_t kMode = 01700;

  // Makes those that are missing; none without a name and in a dry run. The options are those of the
  // embedding program. Throws Error(io). `log` and options.hooks.file_events outlive this.
  NamedFolders(const OffloadOptions& options, Log& log);
  // Removes those that Terrace made, that are empty, and that nobody else uses. In a forked child it does
  // nothing.
  ~NamedFolders();
  NamedFolders(const NamedFolders&) = delete;
  NamedFolders& operator=(const NamedFolders&) = delete;

 private:
  struct Held {
    std::filesystem::path path;
    int fd = -1;
    bool is_locked = false;  // not every file system can
    bool is_terraces = false;
  };
  void hold(const std::filesystem::path& folder);
  bool make(const std::filesystem::path& folder);
  bool try_to_hold(const std::filesystem::path& folder, bool is_made);
  void remove_empty();
  void let_go();

  Log& log_;
  io::FileEvents* events_;
  pid_t owner_;
  std::vector<Held> held_;
};

}  // namespace terrace
