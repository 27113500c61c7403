#include "output_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <string>

#include <terrace/base/error.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

struct Output {
  const char* flag;
  std::string* path;
  const char* what;
  bool is_written_anew = true;  // else appended to, and may be a pipe
};

[[noreturn]] void refuse(const Output& output, const std::string& reason) {
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

// A file is put in the place of the old one as a whole: in that of a link it would leave what the link leads
// to as it was.
void follow_links(const Output& output) {
  fs::path path = *output.path;
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(path, error)); ++links) {
    if (links == 40) refuse(output, system_reason(ELOOP));
    const fs::path target = fs::read_symlink(path, error);
    if (error) refuse(output, system_reason(error.value()));
    path = path.parent_path() / target;  // an absolute target takes the place of all
  }
  *output.path = path.string();
}

// Asked of the system by opening it: what may be written is not all in the permissions (/proc, /sys).
void open_and_close(const Output& output, const fs::path& path, bool exists) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | (exists ? 0 : O_CREAT | O_EXCL), 0666);
  if (fd < 0) refuse(output, system_reason(errno));
  close(fd);
  if (!exists) unlink(path.c_str());
}

void check(const Output& output) {
  if (output.is_written_anew) follow_links(output);
  const fs::path path = *output.path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) refuse(output, system_reason(EISDIR));
  if (fs::exists(status)) {
    if (output.is_written_anew && !fs::is_regular_file(status)) refuse(output, kind_of(status));
    if (access(path.c_str(), W_OK) != 0) refuse(output, system_reason(errno));
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::exists(status) || output.is_written_anew) {
    const fs::file_status above = fs::status(folder, error);
    if (fs::exists(above) && !fs::is_directory(above)) refuse(output, system_reason(ENOTDIR));
    if (access(folder.c_str(), W_OK | X_OK) != 0) refuse(output, system_reason(errno));
  }
  // A pipe would wait for its reader.
  if (!fs::exists(status) || fs::is_regular_file(status)) open_and_close(output, path, fs::exists(status));
}

}  // namespace

void check_output_files(TrainFlags& flags) {
  std::map<fs::path, const char*> seen;
  for (const Output& output :
       {Output{"--trace", &flags.trace, "the trace"}, Output{"--report", &flags.report, "the report"},
        Output{"--decisions", &flags.decisions, "the decisions"},
        Output{"--record-schedule", &flags.record_schedule, "the schedule"},
        Output{"--log", &flags.log, "the log", false}}) {
    if (output.path->empty()) continue;
    check(output);
    const auto [other, is_new] = seen.emplace(fs::weakly_canonical(*output.path), output.flag);
    if (!is_new) refuse(output, std::string("it is the file of ") + other->second);
  }
}

}  // namespace terrace
