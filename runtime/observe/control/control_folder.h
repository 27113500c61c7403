// ControlFolder: the folder in which training jobs listen, with one Unix socket per job, PID.sock. It belongs
// to the user alone. The class must never follow a link, use a folder that another user may write to, or
// remove a socket on which a job listens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace terrace {

// A file descriptor that its owner closes.
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
  // Returns $XDG_RUNTIME_DIR/terrace, or /tmp/terrace-<uid>.
  static std::filesystem::path default_path();

  // Creates the folder (0700) if it is missing. Throws Error(io) when it cannot be used, is a link, or other
  // users may read or write in it.
  explicit ControlFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path socket_of(uint64_t pid) const;

  // Listens under this number and replaces a dead job's socket there. Throws Error(io).
  OwnedFd listen(uint64_t pid) const;
  // Removes the socket that listen() made.
  void remove(uint64_t pid) const;
  // Returns the listening jobs by number. Removes sockets of dead jobs.
  std::vector<RunningJob> jobs() const;

 private:
  bool answers(const std::string& name) const;

  std::filesystem::path path_;
  OwnedFd fd_;
};

// Connects to a socket in any folder; its path may have any length. Throws Error(io) when nobody listens
// there, or when the listener is neither this user nor root.
OwnedFd connect_to_job(const std::filesystem::path& socket);
// True if the process at the other end is this user's or root's.
bool is_of_this_user(int socket_fd);

}  // namespace terrace
