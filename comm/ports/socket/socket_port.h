// SocketPort: a message library of our own, where ranks were started without one: by `terrace launch` or by
// torchrun. Every rank has a connection to every other (SocketRendezvous), and SocketLink carries the
// messages.
//
// A rank whose connection ends fails every message with it that has not arrived, and every later one.
#pragma once

#include <terrace/comm/messages/message_port.h>
#include <terrace/comm/ports/socket/socket_rendezvous.h>

namespace terrace {

// Returns what meets the other ranks and makes the port; it blocks until all are there, and throws as meet()
// does.
MakeMessagePort socket_port(const SocketRendezvous& rendezvous);

}  // namespace terrace
