#include <terrace/runtime/observe/control/control_folder.h>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <terrace/aio/drives/drive_token.h>
#include <terrace/base/error.h>
#include <terrace/base/text/digits.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr int kBacklog = 16;
constexpr std::string_view kSuffix = ".sock";

[[noreturn]] void refuse_folder(const fs::path& path, const Reason& reason) {
  throw Error(ErrorKind::io, {"cannot use the folder of control sockets", path.string(), reason,
                              "set XDG_RUNTIME_DIR to a folder of your own, or train without control"});
}

[[noreturn]] void refuse_socket(const fs::path& path, const Reason& reason) {
  throw Error(ErrorKind::io, {"cannot listen on the control socket", path.string(), reason,
                              "remove it if no job has it, or train without control"});
}

OwnedFd new_socket() {
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0)
    throw Error(ErrorKind::io, {"cannot make a socket", "", system_reason(errno), "close other programs"});
  return fd;
}

// An address has room for 107 characters; by way of the folder's descriptor any path fits.
sockaddr_un address_in(int folder_fd, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = fmt::format("/proc/self/fd/{}/{}", folder_fd, name);
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

// 0, or the errno.
int connect_in(int folder_fd, const std::string& name, int fd) {
  const sockaddr_un address = address_in(folder_fd, name);
  return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

std::string name_of_socket(uint64_t pid) {
  return std::to_string(pid) + std::string(kSuffix);
}

std::optional<uint64_t> number_of(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  return number_of_digits(name.substr(0, name.size() - kSuffix.size()));
}

}  // namespace

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void OwnedFd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

fs::path ControlFolder::default_path() {
  return io::default_token_folder();
}

ControlFolder::ControlFolder(fs::path path) : path_(std::move(path)) {
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) refuse_folder(path_, system_reason(errno));
  fd_ = OwnedFd(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (fd_.get() < 0 || fstat(fd_.get(), &status) != 0) refuse_folder(path_, system_reason(errno));
  if (status.st_uid != geteuid()) refuse_folder(path_, "it is another user's");
  if ((status.st_mode & 0077) != 0)
    refuse_folder(path_, fmt::format("its mode is {:o}, and 700 is needed", status.st_mode & 07777));
}

fs::path ControlFolder::socket_of(uint64_t pid) const {
  return path_ / name_of_socket(pid);
}

bool ControlFolder::answers(const std::string& name) const {
  const OwnedFd probe = new_socket();
  const int error = connect_in(fd_.get(), name, probe.get());
  return error == 0 || error == EAGAIN;  // EAGAIN: more want to connect than it has room for
}

// Under another name first: a socket that has its own is one that somebody listens on, or a dead job's.
OwnedFd ControlFolder::listen(uint64_t pid) const {
  const std::string name = name_of_socket(pid);
  const std::string fresh = name + ".new";
  if (answers(name)) refuse_socket(socket_of(pid), "somebody listens there");
  unlinkat(fd_.get(), fresh.c_str(), 0);
  OwnedFd fd = new_socket();
  const sockaddr_un address = address_in(fd_.get(), fresh);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    refuse_socket(socket_of(pid), system_reason(errno));
  const bool made = fchmodat(fd_.get(), fresh.c_str(), 0600, 0) == 0 && ::listen(fd.get(), kBacklog) == 0 &&
                    renameat(fd_.get(), fresh.c_str(), fd_.get(), name.c_str()) == 0;
  if (!made) {
    const int error = errno;
    unlinkat(fd_.get(), fresh.c_str(), 0);
    refuse_socket(socket_of(pid), system_reason(error));
  }
  return fd;
}

void ControlFolder::remove(uint64_t pid) const {
  unlinkat(fd_.get(), name_of_socket(pid).c_str(), 0);
}

std::vector<RunningJob> ControlFolder::jobs() const {
  std::vector<RunningJob> found;
  std::error_code failure;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, failure)) {
    const std::string name = entry.path().filename().string();
    const std::optional<uint64_t> pid = number_of(name);
    std::error_code unknown;
    if (!pid || entry.symlink_status(unknown).type() != fs::file_type::socket) continue;
    if (answers(name)) {
      found.push_back({*pid, entry.path()});
    } else {
      unlinkat(fd_.get(), name.c_str(), 0);
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return found;
}

bool is_of_this_user(int socket_fd) {
  ucred other{};
  socklen_t bytes = sizeof(other);
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) != 0) return false;
  return other.uid == geteuid() || other.uid == 0;
}

OwnedFd connect_to_job(const fs::path& socket) {
  const auto refuse = [&](const Reason& reason) {
    throw Error(ErrorKind::io,
                {"cannot reach the job", socket.string(), reason,
                 "`terrace ctl status` without a job says which ones run; a job that trains without "
                 "control cannot be reached"});
  };
  const fs::path folder = socket.has_parent_path() ? socket.parent_path() : fs::path(".");
  const OwnedFd folder_fd(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder_fd.get() < 0) refuse(system_reason(errno));
  OwnedFd fd = new_socket();
  if (const int error = connect_in(folder_fd.get(), socket.filename().string(), fd.get()))
    refuse(error == ECONNREFUSED ? "nobody listens there any more" : system_reason(error));
  if (!is_of_this_user(fd.get())) refuse("another user listens there");
  return fd;
}

}  // namespace terrace
