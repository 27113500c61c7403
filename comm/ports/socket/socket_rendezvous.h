// SocketRendezvous: the ranks of a run find each other at one place, and leave it with a connection from each
// of them to every other.
//
// Rank 0 listens at the place. Every other rank listens at a place of its own, comes to rank 0, says who it
// is and where it listens, and waits. When all have come, rank 0 tells everybody where the others are, and a
// number that only they know; each rank then connects to those of lower number. Every connection is one that
// RankHandshake takes in, so both sides have shown that they are of the run.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <terrace/comm/connections/run_secret.h>
#include <terrace/comm/connections/stream_socket.h>
#include <terrace/comm/identity/rank_identity.h>

namespace terrace {

struct SocketRendezvous {
  uint32_t rank = 0;
  uint32_t size = 1;
  // A path on the host that all ranks share; or the host that rank 0 runs on, and a port that is free there.
  RendezvousPlace place = {};
  // What all ranks of the run have, and those of another run have not: a name that a launcher has drawn.
  std::string run = {};
  RunSecret secret = {};
  // Where the launcher has started the ranks, as far as it says.
  WhoComes who_comes = WhoComes::from_anywhere;
  // Called at most once, on rank 0, by the thread that meets, before the others learn that all are there:
  // ranks have come of whom nobody knows that they are of the run. A sentence, with what to do.
  std::function<void(const std::string&)> warn = nullptr;
  // Ranks that have not come by then are missing.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
};

// The rendezvous of a rank as its launcher has arranged it: at TERRACE_MEET, or else at MASTER_ADDR and the
// port behind MASTER_PORT, which torchrun listens at itself; the run is TERRACE_RUN, or else torchrun's own
// name of it, and the secret is TERRACE_SECRET. Throws Error(config) where no place is arranged, and for a
// secret that cannot be used. A pure function of its arguments.
SocketRendezvous rendezvous_of(const RankIdentity& identity, const Environment& variables);

// Returns the connections by rank; the own one is closed. Blocks until all ranks are connected. Throws
// Error(peer) that names the ranks that are missing, or why this one was refused, and Error(io) where rank 0
// cannot listen at the place. Sockets in the file system are gone when it returns.
std::vector<StreamSocket> meet(const SocketRendezvous& rendezvous);

}  // namespace terrace
