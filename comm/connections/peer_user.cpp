#include <terrace/comm/connections/peer_user.h>

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace terrace {
namespace {

// One end of a connection over TCP, an address of IPv4 as IPv6 writes it.
struct TcpEnd {
  std::array<uint8_t, 16> address{};
  uint16_t port = 0;
  bool operator==(const TcpEnd&) const = default;
};

TcpEnd end_of_ipv4(const void* address, uint16_t port) {
  TcpEnd end{.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, .port = port};
  std::memcpy(end.address.data() + 12, address, 4);
  return end;
}

std::optional<TcpEnd> end_from(const sockaddr_storage& bytes) {
  if (bytes.ss_family == AF_INET) {
    sockaddr_in part{};
    std::memcpy(&part, &bytes, sizeof part);
    return end_of_ipv4(&part.sin_addr, ntohs(part.sin_port));
  }
  if (bytes.ss_family != AF_INET6) return std::nullopt;
  sockaddr_in6 part{};
  std::memcpy(&part, &bytes, sizeof part);
  TcpEnd end{.port = ntohs(part.sin6_port)};
  std::memcpy(end.address.data(), &part.sin6_addr, sizeof part.sin6_addr);
  return end;
}

template <typename Call>
sockaddr_storage name_by(Call call, const StreamSocket& socket) {
  sockaddr_storage bytes{};
  socklen_t length = sizeof bytes;
  if (call(socket.fd(), reinterpret_cast<sockaddr*>(&bytes), &length) != 0) bytes.ss_family = AF_UNSPEC;
  return bytes;
}

// "0100007F:1F90", or with four words of IPv6: words of the address in the machine's byte order.
std::optional<TcpEnd> end_in(const char* text) {
  std::array<uint32_t, 4> words{};
  unsigned port = 0;
  if (std::strlen(text) > 13) {
    if (std::sscanf(text, "%8x%8x%8x%8x:%4x", &words[0], &words[1], &words[2], &words[3], &port) != 5)
      return std::nullopt;
    TcpEnd end{.port = static_cast<uint16_t>(port)};
    std::memcpy(end.address.data(), words.data(), sizeof words);
    return end;
  }
  if (std::sscanf(text, "%8x:%4x", &words[0], &port) != 2) return std::nullopt;
  return end_of_ipv4(words.data(), static_cast<uint16_t>(port));
}

// The owner of the open socket that has these two ends, in one of the kernel's tables. A socket that its
// process has closed, or has not accepted yet, has no file, and its row names root.
std::optional<uid_t> owner_in(const char* table, const TcpEnd& own, const TcpEnd& other) {
  constexpr unsigned kEstablished = 1;
  std::ifstream rows(table);
  for (std::string row; std::getline(rows, row);) {
    std::array<char, 64> first{}, second{};
    unsigned state = 0, user = 0;
    unsigned long file = 0;
    if (std::sscanf(row.c_str(), " %*d: %63s %63s %x %*s %*s %*s %u %*u %lu", first.data(), second.data(),
                    &state, &user, &file) != 5)
      continue;
    if (state != kEstablished || file == 0) continue;
    if (end_in(first.data()) == own && end_in(second.data()) == other) return user;
  }
  return std::nullopt;
}

PeerUser tcp_user_of(const StreamSocket& socket) {
  const sockaddr_storage other = name_by(getpeername, socket);
  const std::optional<TcpEnd> own_end = end_from(name_by(getsockname, socket)), other_end = end_from(other);
  if (!own_end || !other_end) return {.is_here = true, .user = std::nullopt};
  if (!is_own_address(other)) return {};
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    if (const std::optional<uid_t> user = owner_in(table, *other_end, *own_end)) return {true, user};
  }
  return {.is_here = true, .user = std::nullopt};
}

}  // namespace

PeerUser peer_user_of(const StreamSocket& socket) {
  int domain = 0;
  socklen_t length = sizeof domain;
  getsockopt(socket.fd(), SOL_SOCKET, SO_DOMAIN, &domain, &length);
  if (domain != AF_UNIX) return tcp_user_of(socket);
  ucred who{};
  length = sizeof who;
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0)
    return {.is_here = true, .user = std::nullopt};
  return {.is_here = true, .user = who.uid};
}

std::string why_not_own(const PeerUser& other) {
  if (!other.is_here) return "it is a process of another host";
  if (!other.user) return "the system does not say whose process it is";
  if (*other.user == geteuid()) return {};
  return fmt::format("it is a process of another user (uid {}, and this one is of uid {})", *other.user,
                     geteuid());
}

}  // namespace terrace
