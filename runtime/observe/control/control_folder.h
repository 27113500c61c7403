// ControlFolder: where jobs that train listen: one Unix socket per job, PID.sock, in a folder of the user's
// alone. It must never follow a link, use a folder that somebody else may write to, or remove a socket that
// somebody listens on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace terrace {

// A file descriptor that is closed with its owner.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() { reset(); }
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  int get() const { return fd_; }
  void reset();

 private:
  int fd_ = -1;
};

struct RunningJob {
  uint64_t pid = 0;
  std::filesystem::path socket;
};

class ControlFolder {
 public:
  // $XDG_RUNTIME_DIR/terrace, or /tmp/terrace-<uid>.
  static std::filesystem::path default_path();

  // Creates the folder (0700) when it is not there. Throws Error(io) when it cannot be used, is a link, or
  // others may read or write in it.
  explicit ControlFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path socket_of(uint64_t pid) const;

  // Listens under this number. A socket there that nobody listens on any more is replaced. Throws Error(io).
  OwnedFd listen(uint64_t pid) const;
  // What listen() made goes.
  void remove(uint64_t pid) const;
  // Who listens, by number. Sockets of dead jobs are removed.
  std::vector<RunningJob> jobs() const;

 private:
  bool answers(const std::string& name) const;

  std::filesystem::path path_;
  OwnedFd fd_;
};

// Connects to a socket wherever it lies; paths may be of any length. Throws Error(io) when nobody listens
// there, or somebody does who is neither this user nor root.
OwnedFd connect_to_job(const std::filesystem::path& socket);
// Whether the process at the other end is this user's or root's.
bool is_of_this_user(int socket_fd);

}  // namespace terrace
