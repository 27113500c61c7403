#include "flags/output_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/base/error.h>

#include "flags/model_choice.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

struct Output {
  const char* flag;
  std::string* path;
  const char* what;
  bool is_written_anew = true;  // false: it is appended to and may be a pipe
};

[[noreturn]] void refuse_output(const Output& output, const Reason& reason) {
  throw Error(ErrorKind::config, {std::string("cannot write ") + output.what, *output.path, reason,
                                  std::string("name a file that can be written with ") + output.flag});
}

const char* kind_of(const fs::file_status& status) {
  switch (status.type()) {
    case fs::file_type::fifo:
      return "it is a pipe";
    case fs::file_type::socket:
      return "it is a socket";
    default:
      return "it is a device";
  }
}

// The kernel makes the same check if it protects links: in a folder like /tmp anybody may have put a link to
// another user's file. The kernel does not see this link, because the link itself is not opened.
bool may_follow(const fs::path& link) {
  const fs::path folder = link.has_parent_path() ? link.parent_path() : fs::path(".");
  struct stat link_status, folder_status;
  if (lstat(link.c_str(), &link_status) != 0 || stat(folder.c_str(), &folder_status) != 0) return false;
  const bool is_shared = (folder_status.st_mode & S_ISVTX) != 0 && (folder_status.st_mode & S_IWOTH) != 0;
  return !is_shared || link_status.st_uid == geteuid() || link_status.st_uid == folder_status.st_uid;
}

// An output replaces the old file as a whole. In place of a link it would leave the link's target as it was,
// so links are followed first.
void follow_links(const Output& output) {
  fs::path path = *output.path;
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(path, error)); ++links) {
    if (links == 40) refuse_output(output, system_reason(ELOOP));
    if (!may_follow(path))
      refuse_output(output, "it is another user's link, in a folder that anybody may write to");
    const fs::path target = fs::read_symlink(path, error);
    if (error) refuse_output(output, system_reason(error.value()));
    path = path.parent_path() / target;  // an absolute target replaces the whole path
  }
  *output.path = path.string();
}

// Opens the file to learn whether it can be written, because permissions do not tell it of every file (/proc,
// /sys).
void open_and_close(const Output& output, const fs::path& path, bool exists) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | (exists ? 0 : O_CREAT | O_EXCL), 0666);
  if (fd < 0 && errno == (exists ? ENOENT : EEXIST)) return;  // another rank tries it at this moment
  if (fd < 0) refuse_output(output, system_reason(errno));
  close(fd);
  if (!exists) unlink(path.c_str());
}

void check(const Output& output) {
  std::error_code error;
  if (output.is_written_anew || !fs::exists(*output.path, error)) follow_links(output);
  const fs::path path = *output.path;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) refuse_output(output, system_reason(EISDIR));
  if (fs::exists(status)) {
    if (output.is_written_anew && !fs::is_regular_file(status)) refuse_output(output, kind_of(status));
    if (access(path.c_str(), W_OK) != 0) refuse_output(output, system_reason(errno));
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::exists(status) || output.is_written_anew) {
    const fs::file_status above = fs::status(folder, error);
    if (fs::exists(above) && !fs::is_directory(above)) refuse_output(output, system_reason(ENOTDIR));
    if (access(folder.c_str(), W_OK | X_OK) != 0) refuse_output(output, system_reason(errno));
  }
  // Opening a pipe would wait for its reader.
  if (!fs::exists(status) || fs::is_regular_file(status)) open_and_close(output, path, fs::exists(status));
}

// Other: an input of the run, or the folder that it saves to.
struct Other {
  const char* flag;
  fs::path path;
  bool is_read_whole = false;  // a folder of which every file is read
};

std::vector<Other> others_of(const TrainFlags& flags) {
  std::vector<Other> others = {{"--config", flags.config},
                               {"--tokenizer", flags.data.tokenizer},
                               {"--save", flags.save},
                               {"--model", model_folder(flags), true}};
  std::error_code missing;
  if (fs::is_regular_file(flags.model, missing)) others.push_back({"--model", flags.model});
  for (const std::string& path : flags.data.paths) others.push_back({"--data", path, true});
  std::erase_if(others, [](const Other& other) { return other.path.empty(); });
  return others;
}

fs::path resolved(const fs::path& path) {
  return fs::weakly_canonical(fs::absolute(path));
}

// Compares two paths by any names that they have; the files need not exist.
bool are_same(const fs::path& one, const fs::path& other) {
  std::error_code missing;
  return fs::equivalent(one, other, missing) || resolved(one) == resolved(other);
}

bool is_within(const fs::path& path, const fs::path& folder) {
  const fs::path inner = resolved(path), outer = resolved(folder);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

void require_apart(const Output& output, const Other& other) {
  std::error_code missing;
  if (are_same(*output.path, other.path))
    refuse_output(output, std::string(other.flag) + " names the same file");
  if (other.is_read_whole && fs::is_regular_file(*output.path, missing) &&
      is_within(*output.path, other.path))
    refuse_output(output, std::string("it is there already, in what ") + other.flag + " names");
}

constexpr const char* kTierFolder = "terrace-tier";  // it lies in every nvme path

void require_outside_tiers(const Output& output) {
  for (const fs::path& part : resolved(*output.path).parent_path()) {
    if (part == kTierFolder) refuse_output(output, "it would be among the files of an nvme tier");
  }
}

}  // namespace

void check_output_files(TrainFlags& flags) {
  const std::vector<Other> others = others_of(flags);
  std::vector<Output> seen;
  for (const Output& output :
       {Output{"--trace", &flags.trace, "the trace"}, Output{"--report", &flags.report, "the report"},
        Output{"--record-schedule", &flags.record_schedule, "the schedule"},
        Output{"--log", &flags.log, "the log", false}}) {
    if (output.path->empty()) continue;
    for (const Other& other : others) require_apart(output, other);
    require_outside_tiers(output);
    check(output);
    for (const Output& earlier : seen) {
      if (are_same(*earlier.path, *output.path))
        refuse_output(output, std::string("it is the file of ") + earlier.flag);
    }
    seen.push_back(output);
  }
}

}  // namespace terrace
