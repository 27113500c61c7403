#include <terrace/comm/liveness/launcher_link.h>

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include <terrace/base/error.h>
#include <terrace/comm/identity/launcher_claim.h>

namespace terrace {

LauncherLink::LauncherLink(const Environment& variables) {
  const std::optional<uint32_t> number = variable_number(variables, kLauncherFd);
  if (!number) return;
  const int fd = static_cast<int>(*number);
  int kind = 0;
  socklen_t length = sizeof kind;
  // A variable may be left over from a process that had such a number.
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &length) != 0 || kind != SOCK_SEQPACKET) return;
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  socket_ = StreamSocket(fd);
}

std::pair<LauncherLink, int> LauncherLink::make() {
  std::array<int, 2> fds{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) != 0)
    throw Error(ErrorKind::io, {"cannot make a connection to a rank", "socketpair", system_reason(errno),
                                "end what else takes memory"});
  fcntl(fds[1], F_SETFD, 0);
  return {LauncherLink(StreamSocket(fds[0])), fds[1]};
}

void LauncherLink::tell(const LauncherWord& word) const {
  if (send(socket_.fd(), &word, sizeof word, MSG_NOSIGNAL) < 0) {
    // The other side has ended, and needs no words.
  }
}

std::optional<LauncherWord> LauncherLink::hear() {
  LauncherWord word;
  const ssize_t count = recv(socket_.fd(), &word, sizeof word, 0);
  if (count == sizeof word && word.magic == LauncherWord::kMagic) return word;
  has_ended_ = count >= 0 || !is_transient(errno);
  return std::nullopt;
}

}  // namespace terrace
