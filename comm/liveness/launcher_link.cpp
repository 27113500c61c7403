#include <terrace/comm/liveness/launcher_link.h>

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/connections/rank_handshake.h>
#include <terrace/comm/identity/launcher_claim.h>
#include <terrace/comm/identity/own_addresses.h>

namespace terrace {
namespace {

std::vector<RendezvousPlace> listed_places(std::string_view list) {
  std::vector<RendezvousPlace> places;
  while (!list.empty()) {
    const std::string_view place = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), place.size() + 1));
    places.push_back(rendezvous_place_in(kLauncherPlaces, place));
  }
  return places;
}

// What the kernel says of a host that does not answer, and not of a process that has ended.
bool is_silence(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN ||
         error == ENETDOWN;
}

}  // namespace

std::string launcher_places(uint16_t port) {
  std::string list;
  for (const std::string& address : own_addresses(own_place().host_name))
    list += (list.empty() ? "" : ",") + text_of(RendezvousPlace{.host = address, .port = port});
  return list;
}

std::optional<uint32_t> launched_gradient_group(const Environment& variables) {
  return variable_number(variables, kNewGradientGroup);
}

LauncherLink::LauncherLink(const Environment& variables) : is_of_rank_(true) {
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

LauncherLink::LauncherLink(StreamSocket socket) : socket_(std::move(socket)) {
  miss_after_silence(socket_, kHostSilence);
}

LauncherLink::~LauncherLink() {
  if (is_of_rank_ && is_open()) tell({.kind = LauncherWord::Kind::ended});
}

LauncherLink LauncherLink::of_rank(const Environment& variables, uint32_t rank, uint32_t ranks,
                                   Reason& reason) {
  LauncherLink link(variables);
  const std::string* const places = variable_text(variables, kLauncherPlaces);
  const std::string* const run = variable_text(variables, kRunName);
  if (link.is_open() || places == nullptr || run == nullptr) return link;
  const RunKey key{run_number(*run), ranks, RankChannel::launcher, secret_of(variables)};
  link.socket_ = come_to(listed_places(*places), key, rank, reason);
  if (link.is_open()) miss_after_silence(link.socket_, kHostSilence);
  return link;
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
  const ssize_t count = recv(socket_.fd(), in_.data() + in_count_, in_.size() - in_count_, 0);
  if (count == 0) end_ = End::process;
  if (count < 0 && !is_transient(errno)) end_ = is_silence(errno) ? End::silence : End::process;
  if (count <= 0) return std::nullopt;
  in_count_ += static_cast<size_t>(count);
  if (in_count_ < in_.size()) return std::nullopt;
  in_count_ = 0;
  LauncherWord word;
  std::memcpy(&word, in_.data(), sizeof word);
  if (word.magic == LauncherWord::kMagic) return word;
  end_ = End::process;
  return std::nullopt;
}

}  // namespace terrace
