#include "launch/rank_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include <terrace/base/error.h>

namespace terrace {
namespace {

Error cannot_log(const std::filesystem::path& path, int error) {
  return Error(ErrorKind::io, {"cannot write what a rank says", path.string(), system_reason(error),
                               "give --log-dir a folder that can be written, or leave it out"});
}

// If one of the two takes no more, the other one still gets all.
void write_all(int fd, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t written = write(fd, bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    bytes += written;
    count -= static_cast<size_t>(written);
  }
}

}  // namespace

RankOutput::RankOutput(const std::filesystem::path& folder, uint32_t ranks, bool appends) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw cannot_log(folder, error.value());
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const std::filesystem::path path = folder / fmt::format("rank-{}.log", rank);
    files_.emplace_back(
        open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (appends ? O_APPEND : O_TRUNC), 0666));
    if (!files_.back().is_open()) throw cannot_log(path, errno);
    for (const int screen : {STDOUT_FILENO, STDERR_FILENO}) {
      std::array<int, 2> fds{};
      if (pipe2(fds.data(), O_CLOEXEC) != 0) throw cannot_log(path, errno);
      fcntl(fds[0], F_SETFL, O_NONBLOCK);
      pipes_.push_back({StreamSocket(fds[1]), StreamSocket(fds[0]), screen, rank});
    }
  }
}

void RankOutput::redirect(uint32_t rank) const {
  if (pipes_.empty()) return;
  dup2(pipes_[2 * rank].in.fd(), STDOUT_FILENO);
  dup2(pipes_[2 * rank + 1].in.fd(), STDERR_FILENO);
}

void RankOutput::close_inputs() {
  for (Pipe& pipe : pipes_) pipe.in.close();
}

void RankOutput::add_to(std::vector<pollfd>& watched) const {
  for (const Pipe& pipe : pipes_) {
    if (pipe.out.is_open()) watched.push_back({pipe.out.fd(), POLLIN, 0});
  }
}

void RankOutput::copy() {
  for (Pipe& pipe : pipes_) copy_some(pipe);
}

void RankOutput::finish() {
  for (Pipe& pipe : pipes_) {
    while (copy_some(pipe)) {
    }
  }
}

// Whether more may be there.
bool RankOutput::copy_some(Pipe& pipe) {
  if (!pipe.out.is_open()) return false;
  std::array<char, 4096> bytes;
  const ssize_t count = read(pipe.out.fd(), bytes.data(), bytes.size());
  if (count < 0 && is_transient(errno)) return false;
  if (count <= 0) {
    pipe.out.close();
    return false;
  }
  write_all(files_[pipe.file].fd(), bytes.data(), static_cast<size_t>(count));
  write_all(pipe.screen, bytes.data(), static_cast<size_t>(count));
  return true;
}

}  // namespace terrace
