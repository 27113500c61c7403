#include <terrace/offload/tiers/named_folders.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include <terrace/aio/file.h>
#include <terrace/aio/file_events.h>
#include <terrace/base/error.h>
#include <terrace/offload/options/tier_name.h>

namespace terrace {

NamedFolders::NamedFolders(const OffloadOptions& options, Log& log)
    : log_(log), events_(options.hooks.file_events), owner_(getpid()) {
  if (options.tier_name.empty() || options.dry) return;
  try {
    for (const std::filesystem::path& folder : tier_folders(options)) make(folder);
  } catch (...) {
    remove_empty();
    throw;
  }
}

NamedFolders::~NamedFolders() {
  if (getpid() == owner_) remove_empty();
}

void NamedFolders::make(const std::filesystem::path& folder) {
  if (mkdir(folder.c_str(), 0700) != 0) {
    if (errno == EEXIST) return;
    throw Error(ErrorKind::io, {"cannot make the folder of a tier", folder.string(), system_reason(errno),
                                "TierPath::path must name a folder that this user may write to"});
  }
  made_.push_back(folder);
  if (events_ != nullptr) events_->folder_created(folder);
  try {
    io::sync_folder(folder.parent_path(), events_);
  } catch (const Error& error) {
    log_.warning(std::string("a power cut may lose the tier folder: ") + error.what());
  }
}

// What is not empty holds commits, or files that are not Terrace's.
void NamedFolders::remove_empty() {
  for (const std::filesystem::path& folder : made_) {
    if (rmdir(folder.c_str()) == 0) {
      if (events_ != nullptr) events_->removed(folder);
    } else if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT) {
      log_.warning("cannot remove " + folder.string() + ": " + system_reason(errno));
    }
  }
}

}  // namespace terrace
