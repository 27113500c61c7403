// PeerUser: what the kernel knows of the process at the other end of a connection, which that process cannot
// change: whether it is on this host, and whose it is. For sockets of the host the kernel says so itself
// (SO_PEERCRED). For TCP its table of connections does: one whose two ends are on this host is in it twice.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include <terrace/comm/connections/stream_socket.h>

namespace terrace {

struct PeerUser {
  bool is_here = false;       // on this host, or in this container
  std::optional<uid_t> user;  // nothing where nobody knows, and always where it is elsewhere
};

// Of a connection over TCP, the other side of which may have ended or not taken it up yet, nobody knows whose
// it is. Thread-safe.
PeerUser peer_user_of(const StreamSocket& socket);

// Why a process of this user may not take the other side for one of its own: empty where that is on this host
// and of the same user, else a clause.
std::string why_not_own(const PeerUser& other);

}  // namespace terrace
