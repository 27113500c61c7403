// StreamSocket: connections between processes, over sockets in the file system of one host or over TCP. Here
// are the calls of the system and their errors; what travels is the business of others.
//
// Places are those of RendezvousPlace; a `socket` that begins with "@" is a name without a file, which ends
// with its listener.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/identity/rank_identity.h>

struct sockaddr_storage;

namespace terrace {

// A moment after which nothing is waited for. Thread-safe.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(Clock::duration from_now) : at_(Clock::now() + from_now) {}

  bool has_passed() const { return Clock::now() >= at_; }
  // The rest for poll(), rounded up; 0 once the moment has passed.
  int left_ms() const;
  // This one, or one that comes earlier.
  Deadline at_most(Clock::duration from_now) const;

 private:
  Clock::time_point at_;
};

// An open socket that neither blocks nor is inherited by programs that are started. It owns its number.
class StreamSocket {
 public:
  StreamSocket() = default;
  explicit StreamSocket(int fd) : fd_(fd) {}
  ~StreamSocket() { close(); }
  StreamSocket(StreamSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  StreamSocket& operator=(StreamSocket&& other) noexcept;

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// "/run/meet.sock" or "host:29501", for messages.
std::string text_of(const RendezvousPlace& place);

// On which hosts those are who come to a socket.
enum class WhoComes : uint8_t { from_here, from_elsewhere_too, from_anywhere };

// A socket that connections come to; a socket in the file system is removed with it.
class ListeningSocket {
 public:
  ListeningSocket() = default;
  // Listens at the path, where a socket that nobody listens at any more is replaced; or at the port, at a
  // free one where it is 0. Where the place names a host, it listens on those addresses alone that the name
  // has and that are this host's own. It listens on all addresses where the place names none, where none of
  // the name's is this host's own (as where addresses are translated), and where the name stands for the
  // loopback here and others may come from elsewhere, for whom it stands for something else (Debian writes a
  // host's own name so; a cluster may call the first host localhost for itself). Throws Error(io), which
  // names the place, where that fails or somebody listens there already.
  explicit ListeningSocket(RendezvousPlace place, WhoComes who = WhoComes::from_anywhere);
  ~ListeningSocket();
  ListeningSocket(ListeningSocket&& other) noexcept = default;
  ListeningSocket& operator=(ListeningSocket&&) = delete;

  // One for each address.
  const std::vector<StreamSocket>& sockets() const { return sockets_; }
  uint16_t port() const;  // 0 for a path
  // The next connection that has come; closed where none has.
  StreamSocket accept() const;

 private:
  RendezvousPlace place_;
  std::vector<StreamSocket> sockets_;
};

// Connects, or returns a closed socket and says in `reason` why not. Throws Error(config) where the host has
// no such name.
StreamSocket connect_to(const RendezvousPlace& place, const Deadline& deadline, Reason& reason);

// The address of the other side of a TCP connection as a number; empty where it is this host's own.
std::string address_of_peer(const StreamSocket& socket);
// The address of this side as a number, by which the other side reaches this host.
std::string own_address(const StreamSocket& socket);
// Whether the address is one of this host's own, the loopback's too. Its port does not matter.
bool is_own_address(const sockaddr_storage& address);

// After so long a host counts as cut off, whoever watches it.
inline constexpr std::chrono::seconds kHostSilence(10);
// A TCP connection ends with an error when the host of the other side has been silent for so long, whatever
// that side's program does; a stopped process is no silent host. Others stay as they are.
void miss_after_silence(const StreamSocket& socket, std::chrono::seconds silence);

// Move all of the bytes. False where the deadline passes or the connection ends before; `reason` then says
// which.
bool write_whole(const StreamSocket& socket, std::span<const std::byte> bytes, const Deadline& deadline,
                 Reason& reason);
bool read_whole(const StreamSocket& socket, std::span<std::byte> bytes, const Deadline& deadline,
                Reason& reason);

// True for errors of send() and recv() after which the same call may do better.
bool is_transient(int error_number);

}  // namespace terrace
