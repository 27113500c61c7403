// SocketPort: a message library of our own, where ranks were started without one: by `terrace launch` or by
// torchrun. Every rank has a connection to every other (SocketMeeting), and SocketLink carries the messages.
//
// A rank whose connection ends fails every message with it that has not arrived, and every later one.
#pragma once

#include <terrace/comm/message_port.h>
#include <terrace/comm/socket_meeting.h>

namespace terrace {

// Returns what meets the other ranks and makes the port; it blocks until all are there, and throws as meet()
// does.
MakeMessagePort socket_port(const SocketMeeting& meeting);

}  // namespace terrace
