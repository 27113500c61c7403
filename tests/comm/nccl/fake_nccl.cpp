#include "comm/nccl/fake_nccl.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <terrace/base/assert.h>

namespace terrace::testing {
namespace {

using Waiting = std::atomic<uint32_t>;  // what was put on a stream of PlayedNcclGpu and is not over

constexpr int kInternalError = 3, kRemoteError = 6;

struct Clique;

struct FakeComm {
  Clique* clique;
  int rank;
  bool aborted = false;
  int error = nccl::kSuccess;
};

// One side of a transfer.
struct Side {
  FakeComm* comm;
  int from, to;
  const void* sent;  // null: this is the receiver's
  void* received;
  size_t bytes;
  FakeNccl::Over over;
};

struct GatherSide {
  FakeComm* comm;
  const void* mine;
  void* all;
  size_t bytes;
  FakeNccl::Over over;
};

// The ranks that have one id.
struct Clique {
  int ranks = 0;
  int come = 0;
  bool broken = false;
  std::vector<FakeComm*> comms;
  std::list<Side> sides;  // that wait for the other one
  std::vector<GatherSide> gather;
};

struct Failure {
  std::string call;
  int rank;
  uint64_t left;
  int result;
};

struct Library {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t next_id = 1;
  std::map<uint64_t, Clique> cliques;
  std::map<FakeComm*, std::unique_ptr<FakeComm>> comms;
  std::map<std::string, uint64_t> counts;
  std::vector<Failure> failures;
  std::set<std::pair<std::string, int>> blocked;
  FakeNccl::PutOn put_on;  // empty: streams are those of PlayedNcclGpu
  bool held = false;
};

Library& library() {
  static Library the_library;
  return the_library;
}

using Lock = std::unique_lock<std::mutex>;

thread_local bool in_group = false;
thread_local std::vector<Side> group;

FakeNccl::Over put_on(nccl::Stream stream) {
  if (library().put_on) return library().put_on(stream);
  auto* const waiting = static_cast<Waiting*>(stream);
  ++*waiting;
  return [waiting] { --*waiting; };
}

// Begins every call: counts it, and says why it fails if it shall.
int enter(const char* call, FakeComm* comm, Lock& lock) {
  Library& l = library();
  ++l.counts[call];
  if (comm != nullptr && l.blocked.contains({call, comm->rank})) {
    l.changed.wait(lock, [&] { return comm->aborted; });
    return kInternalError;
  }
  for (Failure& failure : l.failures) {
    if (failure.call != call || (comm != nullptr && comm->rank != failure.rank) || failure.left == 0)
      continue;
    if (--failure.left == 0) return failure.result;
  }
  return comm != nullptr && comm->aborted ? kInternalError : nccl::kSuccess;
}

void meet(const Side& side) {
  Clique& clique = *side.comm->clique;
  for (auto other = clique.sides.begin(); other != clique.sides.end(); ++other) {
    if (other->from != side.from || other->to != side.to ||
        (other->sent == nullptr) == (side.sent == nullptr))
      continue;
    TERRACE_ASSERT(other->bytes == side.bytes, "both sides of a transfer have one size");
    const Side& sender = side.sent != nullptr ? side : *other;
    const Side& receiver = side.sent != nullptr ? *other : side;
    std::memcpy(receiver.received, sender.sent, side.bytes);
    sender.over(), receiver.over();
    clique.sides.erase(other);
    return;
  }
  clique.sides.push_back(side);
}

int put(const Side& side) {
  if (in_group) {
    group.push_back(side);
  } else if (!library().held) {
    meet(side);
  }
  return nccl::kSuccess;
}

int fake_version(int* version) {
  Lock lock(library().mutex);
  *version = 21903;
  return enter("ncclGetVersion", nullptr, lock);
}
int fake_unique_id(nccl::UniqueId* id) {
  Lock lock(library().mutex);
  const uint64_t number = library().next_id++;
  std::memcpy(id->bytes, &number, sizeof number);
  return enter("ncclGetUniqueId", nullptr, lock);
}
// Waits for all ranks, of whom none has a communicator where one fails.
int fake_init_rank(nccl::Comm* comm, int ranks, nccl::UniqueId id, int rank) {
  Library& l = library();
  Lock lock(l.mutex);
  uint64_t number = 0;
  std::memcpy(&number, id.bytes, sizeof number);
  Clique& clique = l.cliques[number];
  FakeComm asking{&clique, rank};
  const int result = enter("ncclCommInitRank", &asking, lock);
  clique.ranks = ranks;
  clique.broken = clique.broken || result != nccl::kSuccess;
  ++clique.come;
  l.changed.notify_all();
  l.changed.wait(lock, [&] { return clique.come == clique.ranks || clique.broken; });
  if (clique.broken) return result != nccl::kSuccess ? result : kRemoteError;
  auto made = std::make_unique<FakeComm>(asking);
  clique.comms.push_back(made.get());
  *comm = made.get();
  l.comms[made.get()] = std::move(made);
  return nccl::kSuccess;
}

// Takes what the rank waits for off its streams, and tells the others.
void end(FakeComm& comm, bool aborts) {
  Clique& clique = *comm.clique;
  std::erase_if(clique.sides, [&](const Side& side) {
    if (side.comm == &comm) side.over();
    return side.comm == &comm;
  });
  std::erase_if(clique.gather, [&](const GatherSide& side) {
    if (side.comm == &comm) side.over();
    return side.comm == &comm;
  });
  std::erase(clique.comms, &comm);
  if (!aborts) return;
  comm.aborted = true;
  for (FakeComm* other : clique.comms) other->error = kRemoteError;
}
int fake_destroy(nccl::Comm comm) {
  Library& l = library();
  Lock lock(l.mutex);
  end(*static_cast<FakeComm*>(comm), false);
  l.comms.erase(static_cast<FakeComm*>(comm));
  return enter("ncclCommDestroy", nullptr, lock);
}
// The memory stays, for calls that wait in it.
int fake_abort(nccl::Comm comm) {
  Library& l = library();
  Lock lock(l.mutex);
  end(*static_cast<FakeComm*>(comm), true);
  l.changed.notify_all();
  return enter("ncclCommAbort", nullptr, lock);
}
int fake_async_error(nccl::Comm comm, int* error) {
  Lock lock(library().mutex);
  auto* const of_rank = static_cast<FakeComm*>(comm);
  *error = of_rank->error;
  return enter("ncclCommGetAsyncError", of_rank, lock);
}
const char* fake_error_text(int result) {
  switch (result) {
    case 2:
      return "unhandled system error";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}
const char* fake_last_error(nccl::Comm) {
  return "said by the last call";
}
int fake_group_start() {
  Lock lock(library().mutex);
  if (const int result = enter("ncclGroupStart", nullptr, lock); result != nccl::kSuccess) return result;
  TERRACE_ASSERT(!in_group, "one group at a time");
  in_group = true;
  return nccl::kSuccess;
}
int fake_group_end() {
  Lock lock(library().mutex);
  TERRACE_ASSERT(in_group, "a group ends that was begun");
  in_group = false;
  const std::vector<Side> sides = std::exchange(group, {});
  const int result = enter("ncclGroupEnd", sides.empty() ? nullptr : sides.front().comm, lock);
  for (const Side& side : sides) {
    if (result != nccl::kSuccess || side.comm->aborted) {
      side.over();
    } else if (library().held) {
      side.comm->clique->sides.push_back(side);
    } else {
      meet(side);
    }
  }
  return result;
}
int fake_send(const void* memory, size_t count, int type, int peer, nccl::Comm comm, nccl::Stream stream) {
  Lock lock(library().mutex);
  auto* const mine = static_cast<FakeComm*>(comm);
  if (const int result = enter("ncclSend", mine, lock); result != nccl::kSuccess) return result;
  TERRACE_ASSERT(type == nccl::kBytes, "only bytes move");
  return put({mine, mine->rank, peer, memory, nullptr, count, put_on(stream)});
}
int fake_receive(void* memory, size_t count, int type, int peer, nccl::Comm comm, nccl::Stream stream) {
  Lock lock(library().mutex);
  auto* const mine = static_cast<FakeComm*>(comm);
  if (const int result = enter("ncclRecv", mine, lock); result != nccl::kSuccess) return result;
  TERRACE_ASSERT(type == nccl::kBytes, "only bytes move");
  return put({mine, peer, mine->rank, nullptr, memory, count, put_on(stream)});
}
int fake_all_gather(const void* mine, void* all, size_t count, int type, nccl::Comm comm,
                    nccl::Stream stream) {
  Lock lock(library().mutex);
  auto* const of_rank = static_cast<FakeComm*>(comm);
  if (const int result = enter("ncclAllGather", of_rank, lock); result != nccl::kSuccess) return result;
  TERRACE_ASSERT(type == nccl::kBytes, "only bytes move");
  std::vector<GatherSide>& sides = of_rank->clique->gather;
  sides.push_back({of_rank, mine, all, count, put_on(stream)});
  if (library().held || sides.size() < static_cast<size_t>(of_rank->clique->ranks)) return nccl::kSuccess;
  for (const GatherSide& to : sides) {
    for (const GatherSide& from : sides) {
      if (from.comm != to.comm)
        std::memcpy(static_cast<std::byte*>(to.all) + from.comm->rank * count, from.mine, count);
    }
  }
  for (const GatherSide& side : sides) side.over();
  sides.clear();
  return nccl::kSuccess;
}

}  // namespace

FakeNccl::FakeNccl() {
  Library& l = library();
  const Lock lock(l.mutex);
  l.counts.clear(), l.failures.clear(), l.blocked.clear();
  l.cliques.clear(), l.comms.clear();
  l.put_on = nullptr;
  l.held = false;
}

FakeNccl::~FakeNccl() = default;

std::unique_ptr<const NcclCalls> FakeNccl::table() {
  auto calls = std::make_unique<NcclCalls>();
#define TERRACE_NCCL_PLAY(member, symbol, result, parameters) calls->member = &fake_##member;
  TERRACE_NCCL_CALLS(TERRACE_NCCL_PLAY)
#undef TERRACE_NCCL_PLAY
  calls->last_error = &fake_last_error;
  return calls;
}

void FakeNccl::fail(const std::string& call, uint32_t rank, uint64_t nth, int result) {
  const Lock lock(library().mutex);
  library().failures.push_back({call, static_cast<int>(rank), nth, result});
}

void FakeNccl::block(const std::string& call, uint32_t rank) {
  const Lock lock(library().mutex);
  library().blocked.insert({call, static_cast<int>(rank)});
}

void FakeNccl::hold() {
  const Lock lock(library().mutex);
  library().held = true;
}

void FakeNccl::set_streams(PutOn put_on) {
  const Lock lock(library().mutex);
  library().put_on = std::move(put_on);
}

uint64_t FakeNccl::calls(const std::string& call) const {
  const Lock lock(library().mutex);
  return library().counts[call];
}

uint32_t FakeNccl::communicators() const {
  const Lock lock(library().mutex);
  uint32_t count = 0;
  for (const auto& [comm, owned] : library().comms) count += comm->aborted ? 0 : 1;
  return count;
}

struct PlayedNcclGpu::Stream {
  Waiting waiting{0};
};

PlayedNcclGpu::PlayedNcclGpu() : stream_(std::make_unique<Stream>()) {}
PlayedNcclGpu::~PlayedNcclGpu() = default;

void* PlayedNcclGpu::stream() const {
  return &stream_->waiting;
}

bool PlayedNcclGpu::is_over() const {
  return stream_->waiting == 0;
}

}  // namespace terrace::testing
