// The connections of the heartbeat: one from each rank to rank 0. They are made once the ranks can talk,
// however they talk, and have nothing to do with it afterwards.
#pragma once

#include <string>
#include <vector>

#include <terrace/comm/connections/stream_socket.h>
#include <terrace/comm/operations/communicator.h>

namespace terrace {

struct HeartbeatLinks {
  std::vector<StreamSocket> links;  // by rank: on rank 0 those of all others, elsewhere that of rank 0
  std::string why_none;             // the same on all ranks; empty where there are links
};

// Every rank calls it, and nothing of the control lane is under way. `places` are those of all ranks: on one
// host the connections are sockets of that host, between hosts they are those of TCP, on which a host that
// falls silent counts as gone after ten seconds. Throws what a ballot throws.
HeartbeatLinks meet_for_heartbeat(Communicator& ranks, const std::vector<RankPlace>& places);

}  // namespace terrace
