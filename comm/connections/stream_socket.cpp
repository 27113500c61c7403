#include <terrace/comm/connections/stream_socket.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <vector>

#include <terrace/base/error.h>

namespace terrace {
namespace {

constexpr int kBacklog = 1024;
constexpr int kKind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr std::string_view kEnded = "the other side has closed the connection";

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

template <typename Part>
Address address_from(const Part& part, size_t length) {
  Address address;
  std::memcpy(&address.bytes, &part, sizeof part);
  address.length = static_cast<socklen_t>(length);
  return address;
}

bool has_no_file(const std::filesystem::path& path) {
  return path.native().starts_with('@');
}

// The address of a socket in the file system. A path that is too long for one is reached by its folder, which
// stays open as long as this lives.
class PathAddress {
 public:
  explicit PathAddress(const std::filesystem::path& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::string name = path.native();
    if (name.size() >= sizeof address.sun_path && !has_no_file(path)) {
      folder_ = StreamSocket(open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      name = fmt::format("/proc/self/fd/{}/{}", folder_.fd(), path.filename().native());
    }
    name.resize(std::min(name.size(), sizeof address.sun_path - 1));
    std::memcpy(address.sun_path, name.data(), name.size());
    size_t length = offsetof(sockaddr_un, sun_path) + name.size();
    if (has_no_file(path)) {
      address.sun_path[0] = 0;
    } else {
      ++length;
    }
    address_ = address_from(address, length);
  }
  const Address& get() const { return address_; }

 private:
  StreamSocket folder_;
  Address address_;
};

bool is_other_file(const std::filesystem::path& file) {
  std::error_code error;
  return !file.empty() && !has_no_file(file) && std::filesystem::exists(file, error) &&
         !std::filesystem::is_socket(file, error);
}

Error cannot_listen(const RendezvousPlace& place, int error_number) {
  const bool is_taken = error_number == EADDRINUSE;
  if (is_taken && is_other_file(place.socket))
    return Error(ErrorKind::config, {"cannot listen for other ranks", text_of(place),
                                     "something else than a socket has this name",
                                     "correct TERRACE_MEET: the socket is made there"});
  return Error(ErrorKind::io,
               {"cannot listen for other ranks", text_of(place),
                is_taken ? "somebody listens there already" : system_reason(error_number),
                is_taken ? "wait until the other run has begun, or give this one another place to meet"
                         : "give the run another place to meet (TERRACE_MEET, or MASTER_ADDR and "
                           "MASTER_PORT)"});
}

// Returns 0 or an error number.
int bind_and_listen(const StreamSocket& socket, const Address& address) {
  if (!socket.is_open()) return errno;
  if (bind(socket.fd(), address.get(), address.length) != 0) return errno;
  return listen(socket.fd(), kBacklog) == 0 ? 0 : errno;
}

// True where a process that has ended has left its socket. Any other file is the user's.
bool is_left_over(const std::filesystem::path& file, const PathAddress& path) {
  if (has_no_file(file) || !std::filesystem::is_socket(file)) return false;
  const StreamSocket probe(socket(AF_UNIX, kKind, 0));
  return connect(probe.fd(), path.get().get(), path.get().length) != 0 && errno == ECONNREFUSED;
}

StreamSocket listen_at_path(const RendezvousPlace& place) {
  const PathAddress path(place.socket);
  StreamSocket listener(socket(AF_UNIX, kKind, 0));
  int error = bind_and_listen(listener, path.get());
  if (error == EADDRINUSE && is_left_over(place.socket, path)) {
    unlink(place.socket.c_str());
    listener = StreamSocket(socket(AF_UNIX, kKind, 0));
    error = bind_and_listen(listener, path.get());
  }
  if (error != 0) throw cannot_listen(place, error);
  return listener;
}

void set_number(const StreamSocket& socket, int level, int option, int value) {
  setsockopt(socket.fd(), level, option, &value, sizeof value);
}

// Returns 0 or an error number.
int listen_on(const Address& address, StreamSocket& listener) {
  listener = StreamSocket(socket(address.bytes.ss_family, kKind, 0));
  if (address.bytes.ss_family == AF_INET6) set_number(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  set_number(listener, SOL_SOCKET, SO_REUSEADDR, 1);
  return bind_and_listen(listener, address);
}

// On the addresses of IPv6 and of IPv4, or of IPv4 alone where the host has no other.
StreamSocket listen_on_all(const RendezvousPlace& place) {
  StreamSocket listener;
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(place.port);
  const int error = listen_on(address_from(any, sizeof any), listener);
  if (error == 0) return listener;
  if (error == EADDRINUSE) throw cannot_listen(place, error);
  sockaddr_in older{};
  older.sin_family = AF_INET;
  older.sin_port = htons(place.port);
  if (const int failed = listen_on(address_from(older, sizeof older), listener))
    throw cannot_listen(place, failed);
  return listener;
}

uint16_t port_of(const Address& address) {
  if (address.bytes.ss_family == AF_INET) {
    sockaddr_in part{};
    std::memcpy(&part, &address.bytes, sizeof part);
    return ntohs(part.sin_port);
  }
  if (address.bytes.ss_family != AF_INET6) return 0;
  sockaddr_in6 part{};
  std::memcpy(&part, &address.bytes, sizeof part);
  return ntohs(part.sin6_port);
}

Address with_port(Address address, uint16_t port) {
  const uint16_t sent = htons(port);
  const bool is_ipv4 = address.bytes.ss_family == AF_INET;
  const size_t offset = is_ipv4 ? offsetof(sockaddr_in, sin_port) : offsetof(sockaddr_in6, sin6_port);
  std::memcpy(reinterpret_cast<char*>(&address.bytes) + offset, &sent, sizeof sent);
  return address;
}

template <typename Call>
Address address_by(Call call, int fd) {
  Address address;
  address.length = sizeof address.bytes;
  if (call(fd, reinterpret_cast<sockaddr*>(&address.bytes), &address.length) != 0) address.length = 0;
  return address;
}

std::string number_of(const Address& address) {
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(address.get(), address.length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  const std::string_view number = host.data();
  constexpr std::string_view kMapped = "::ffff:";  // an address of IPv4, as a socket of IPv6 sees it
  return std::string(number.starts_with(kMapped) ? number.substr(kMapped.size()) : number);
}

bool is_loopback_number(std::string_view number) {
  return number == "::1" || number.starts_with("127.");
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Returns 0, or the code of getaddrinfo().
int look_up(const RendezvousPlace& place, AddressList& list) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &wanted, &found);
  if (code == 0) list.reset(found);
  return code;
}

std::vector<Address> addresses_in(const AddressList& list) {
  std::vector<Address> addresses;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    Address address;
    std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

// Those on which to listen; none: on all. A name may have an address twice.
std::vector<Address> addresses_to_listen_on(const RendezvousPlace& place, WhoComes who) {
  AddressList list(nullptr, freeaddrinfo);
  if (place.host.empty() || look_up(place, list) != 0) return {};
  std::vector<Address> own;
  std::vector<std::string> numbers;
  for (const Address& address : addresses_in(list)) {
    std::string number = number_of(address);
    if (!is_own_address(address.bytes) || std::ranges::find(numbers, number) != numbers.end()) continue;
    own.push_back(address);
    numbers.push_back(std::move(number));
  }
  const bool says_loopback = place.host == "localhost" || is_loopback_number(place.host);
  const bool is_enough = !std::ranges::all_of(numbers, is_loopback_number) || who == WhoComes::from_here ||
                         (who == WhoComes::from_anywhere && says_loopback);
  return is_enough ? own : std::vector<Address>();
}

// Returns 0 or an error number. A free port of the first address may be taken at another one.
int listen_on_each(std::span<const Address> addresses, uint16_t port, std::vector<StreamSocket>& listeners) {
  int error = EADDRNOTAVAIL;
  for (const Address& address : addresses) {
    StreamSocket listener;
    error = listen_on(with_port(address, port), listener);
    if (error == EADDRINUSE) return error;
    if (error != 0) continue;  // as where the host has no IPv6
    port = port_of(address_by(getsockname, listener.fd()));
    listeners.push_back(std::move(listener));
  }
  return listeners.empty() ? error : 0;
}

std::vector<StreamSocket> listen_at_port(const RendezvousPlace& place, WhoComes who) {
  const std::vector<Address> addresses = addresses_to_listen_on(place, who);
  std::vector<StreamSocket> listeners;
  if (addresses.empty()) {
    listeners.push_back(listen_on_all(place));
    return listeners;
  }
  constexpr int kTries = 8;
  int error = 0;
  for (int i = 0; i < kTries; ++i) {
    listeners.clear();
    error = listen_on_each(addresses, place.port, listeners);
    if (error == 0) return listeners;
    if (place.port != 0) break;
  }
  throw cannot_listen(place, error);
}

// Nothing, with the reason, where the name cannot be looked up at the moment.
std::vector<Address> addresses_of(const RendezvousPlace& place, Reason& reason) {
  AddressList list(nullptr, freeaddrinfo);
  const int code = look_up(place, list);
  if (code == EAI_NONAME)
    throw Error(ErrorKind::config, {"cannot find the host where ranks meet", place.host, gai_strerror(code),
                                    "correct TERRACE_MEET or MASTER_ADDR"});
  if (code != 0) reason = gai_strerror(code);
  return addresses_in(list);
}

bool wait_for(const StreamSocket& socket, short events, const Deadline& deadline) {
  pollfd watched{socket.fd(), events, 0};
  while (true) {
    const int ready = poll(&watched, 1, deadline.left_ms());
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

StreamSocket connect_to_address(const Address& address, const Deadline& deadline, Reason& reason) {
  StreamSocket connection(socket(address.bytes.ss_family, kKind, 0));
  int error = 0;
  if (!connection.is_open() || connect(connection.fd(), address.get(), address.length) != 0) error = errno;
  if (error == EINPROGRESS) {
    error = ETIMEDOUT;
    socklen_t length = sizeof error;
    if (wait_for(connection, POLLOUT, deadline))
      getsockopt(connection.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error == 0) {
    if (address.bytes.ss_family != AF_UNIX) set_number(connection, IPPROTO_TCP, TCP_NODELAY, 1);
    return connection;
  }
  reason = system_reason(error);
  return {};
}

}  // namespace

int Deadline::left_ms() const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
}

Deadline Deadline::at_most(Clock::duration from_now) const {
  Deadline earlier(from_now);
  earlier.at_ = std::min(earlier.at_, at_);
  return earlier;
}

StreamSocket& StreamSocket::operator=(StreamSocket&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

void StreamSocket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string text_of(const RendezvousPlace& place) {
  if (!place.socket.empty()) return place.socket.string();
  const bool brackets = place.host.find(':') != std::string::npos;
  return fmt::format(fmt::runtime(brackets ? "[{}]:{}" : "{}:{}"), place.host, place.port);
}

ListeningSocket::ListeningSocket(RendezvousPlace place, WhoComes who) : place_(std::move(place)) {
  if (place_.socket.empty()) {
    sockets_ = listen_at_port(place_, who);
  } else {
    sockets_.push_back(listen_at_path(place_));
  }
}

ListeningSocket::~ListeningSocket() {
  if (!sockets_.empty() && !place_.socket.empty() && !has_no_file(place_.socket))
    unlink(place_.socket.c_str());
}

uint16_t ListeningSocket::port() const {
  return port_of(address_by(getsockname, sockets_.front().fd()));
}

StreamSocket ListeningSocket::accept() const {
  for (const StreamSocket& socket : sockets_) {
    StreamSocket connection(accept4(socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!connection.is_open()) continue;
    if (place_.socket.empty()) set_number(connection, IPPROTO_TCP, TCP_NODELAY, 1);
    return connection;
  }
  return {};
}

StreamSocket connect_to(const RendezvousPlace& place, const Deadline& deadline, Reason& reason) {
  if (!place.socket.empty()) return connect_to_address(PathAddress(place.socket).get(), deadline, reason);
  constexpr std::chrono::seconds kLongestTry(5);
  StreamSocket connection;
  for (const Address& address : addresses_of(place, reason)) {
    connection = connect_to_address(address, deadline.at_most(kLongestTry), reason);
    if (connection.is_open()) break;
  }
  return connection;
}

std::string address_of_peer(const StreamSocket& socket) {
  const std::string peer = number_of(address_by(getpeername, socket.fd()));
  if (is_loopback_number(peer)) return {};
  return peer == own_address(socket) ? std::string() : peer;
}

std::string own_address(const StreamSocket& socket) {
  return number_of(address_by(getsockname, socket.fd()));
}

// Only there it can be bound.
bool is_own_address(const sockaddr_storage& address) {
  Address unbound;
  unbound.bytes = address;
  unbound.length = address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  const StreamSocket probe(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (address.ss_family == AF_INET6) set_number(probe, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  unbound = with_port(unbound, 0);
  return probe.is_open() && bind(probe.fd(), unbound.get(), unbound.length) == 0;
}

void miss_after_silence(const StreamSocket& socket, std::chrono::seconds silence) {
  constexpr int kProbes = 4;
  const auto total = static_cast<int>(silence.count());
  const int interval = std::max(1, total / (kProbes + 1));
  set_number(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_number(socket, IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set_number(socket, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_number(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set_number(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, total * 1000);
}

bool is_transient(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR;
}

bool write_whole(const StreamSocket& socket, std::span<const std::byte> bytes, const Deadline& deadline,
                 Reason& reason) {
  while (!bytes.empty()) {
    const ssize_t count = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (!is_transient(errno)) {
      reason = system_reason(errno);
      return false;
    } else if (!wait_for(socket, POLLOUT, deadline)) {
      reason = system_reason(ETIMEDOUT);
      return false;
    }
  }
  return true;
}

bool read_whole(const StreamSocket& socket, std::span<std::byte> bytes, const Deadline& deadline,
                Reason& reason) {
  while (!bytes.empty()) {
    const ssize_t count = recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (count == 0) {
      reason = Reason(std::string(kEnded));
      return false;
    } else if (!is_transient(errno)) {
      reason = system_reason(errno);
      return false;
    } else if (!wait_for(socket, POLLIN, deadline)) {
      reason = system_reason(ETIMEDOUT);
      return false;
    }
  }
  return true;
}

}  // namespace terrace
