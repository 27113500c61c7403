// libnccl.so.2 of a machine without a GPU: the calls of NCCL by the names that a program looks up, for ranks
// that are processes of one host, over sockets and on the streams of the played driver (played_libcuda.cpp).
// A group of sends and receives is one task of its stream, which ends when all bytes have moved. Whoever
// waits for a rank that is gone waits until its communicator is aborted: nobody tells it, as with NCCL
// itself.
//
// TERRACE_PLAYED_NCCL says what fails: "ncclSend 1 3" is the third call of ncclSend by rank 1. With "kill 1
// 3" that rank's process is killed in its third group, for which the others wait by then.
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/comm/nccl/nccl_calls.h>

namespace {

using terrace::nccl::Comm;
using terrace::nccl::Stream;
using terrace::nccl::UniqueId;

constexpr int kSuccess = 0, kSystemError = 2, kInvalid = 4;

struct PlayedComm {
  int rank = 0;
  std::vector<int> peers;  // sockets by rank; -1: the own one
  std::atomic<bool> aborted = false;
  std::atomic<int> tasks = 0;  // on streams
};

struct Move {
  PlayedComm* comm;
  int peer;
  bool is_sent;
  std::byte* memory;
  size_t bytes;
  size_t moved = 0;
};

thread_local int depth = 0;
thread_local std::vector<Move> group;
thread_local Stream group_stream = nullptr;

bool fails(const char* call, int rank) {
  static std::mutex mutex;
  static int seen = 0;
  const char* const asked = std::getenv("TERRACE_PLAYED_NCCL");
  if (asked == nullptr) return false;
  std::istringstream words(asked);
  std::string name;
  int of_rank = 0, nth = 0;
  words >> name >> of_rank >> nth;
  if (name != call || of_rank != rank) return false;
  const std::lock_guard lock(mutex);
  return ++seen == nth;
}

void* driver_call(const char* name) {
  return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
}

// Moves what the sockets take and have, until all is over or nobody waits for it any more.
void work(void* data) {
  const std::unique_ptr<std::vector<Move>> moves(static_cast<std::vector<Move>*>(data));
  PlayedComm& comm = *moves->front().comm;
  for (bool all_over = false; !all_over && !comm.aborted;) {
    all_over = true;
    bool moved = false;
    for (Move& move : *moves) {
      if (move.moved == move.bytes) continue;
      all_over = false;
      std::byte* const at = move.memory + move.moved;
      const size_t left = move.bytes - move.moved;
      const int socket = comm.peers[static_cast<size_t>(move.peer)];
      const ssize_t count = move.is_sent ? send(socket, at, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                         : recv(socket, at, left, MSG_DONTWAIT);
      if (count > 0) move.moved += static_cast<size_t>(count), moved = true;
    }
    if (!moved && !all_over) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  --comm.tasks;
}

int begin(std::vector<Move> moves, Stream stream) {
  if (moves.empty()) return kSuccess;
  PlayedComm& comm = *moves.front().comm;
  if (fails("kill", comm.rank)) raise(SIGKILL);
  ++comm.tasks;
  using Launch = int (*)(void*, void (*)(void*), void*);
  return reinterpret_cast<Launch>(driver_call("cuLaunchHostFunc"))(stream, work,
                                                                   new std::vector<Move>(std::move(moves)));
}

// Real NCCL would end with an illegal access.
bool is_on_a_gpu(const void* memory) {
  unsigned type = 0;
  int attribute = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
  void* value = &type;
  using Ask = int (*)(unsigned, int*, void**, unsigned long long);
  const auto ask = reinterpret_cast<Ask>(driver_call("cuPointerGetAttributes"));
  return ask(1, &attribute, &value, reinterpret_cast<unsigned long long>(memory)) == 0 && type == 2;
}

int put(const char* call, const Move& move, Stream stream) {
  if (fails(call, move.comm->rank)) return kSystemError;
  if (!is_on_a_gpu(move.memory)) return kInvalid;
  if (depth == 0) return begin({move}, stream);
  group.push_back(move);
  group_stream = stream;
  return kSuccess;
}

sockaddr_un address_of(const UniqueId& id, int rank, socklen_t& bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = std::string(id.bytes) + "-" + std::to_string(rank);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // without a place in the file system
  bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// -1: the other rank does not come.
int connect_to(const UniqueId& id, int rank, int own_rank) {
  socklen_t bytes = 0;
  const sockaddr_un address = address_of(id, rank, bytes);
  for (int attempt = 0; attempt < 3000; ++attempt) {
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(made, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) {
      if (send(made, &own_rank, sizeof own_rank, MSG_NOSIGNAL) == sizeof own_rank) return made;
    }
    close(made);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return -1;
}

}  // namespace

#define TERRACE_PLAYED extern "C" __attribute__((visibility("default")))

TERRACE_PLAYED int ncclGetVersion(int* version) {
  *version = 21903;
  return kSuccess;
}

TERRACE_PLAYED int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> made = 0;
  *id = {};
  const std::string text = "played-nccl-" + std::to_string(getpid()) + "-" + std::to_string(++made);
  std::memcpy(id->bytes, text.data(), text.size());
  return kSuccess;
}

TERRACE_PLAYED int ncclCommInitRank(Comm* comm, int ranks, UniqueId id, int rank) {
  if (fails("ncclCommInitRank", rank)) return kSystemError;
  auto made = std::make_unique<PlayedComm>();
  made->rank = rank;
  made->peers.assign(static_cast<size_t>(ranks), -1);
  socklen_t bytes = 0;
  const sockaddr_un address = address_of(id, rank, bytes);
  const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listening, reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      listen(listening, ranks) != 0)
    return kSystemError;
  for (int other = 0; other < rank; ++other) {
    made->peers[static_cast<size_t>(other)] = connect_to(id, other, rank);
    if (made->peers[static_cast<size_t>(other)] < 0) return kSystemError;
  }
  for (int later = rank + 1; later < ranks; ++later) {
    pollfd waited{listening, POLLIN, 0};
    if (poll(&waited, 1, 30'000) != 1) return kSystemError;
    const int from = accept(listening, nullptr, nullptr);
    int other = 0;
    if (recv(from, &other, sizeof other, MSG_WAITALL) != sizeof other) return kSystemError;
    made->peers.at(static_cast<size_t>(other)) = from;
  }
  close(listening);
  *comm = made.release();
  return kSuccess;
}

// What is on a stream ends first.
TERRACE_PLAYED int ncclCommDestroy(Comm comm) {
  auto* const going = static_cast<PlayedComm*>(comm);
  while (going->tasks > 0) std::this_thread::yield();
  for (const int socket : going->peers) {
    if (socket >= 0) close(socket);
  }
  delete going;
  return kSuccess;
}

// The memory stays, for calls that are in it. The others see an end that tells them nothing.
TERRACE_PLAYED int ncclCommAbort(Comm comm) {
  auto* const going = static_cast<PlayedComm*>(comm);
  going->aborted = true;
  return kSuccess;
}

TERRACE_PLAYED int ncclCommGetAsyncError(Comm comm, int* error) {
  *error = kSuccess;
  return fails("ncclCommGetAsyncError", static_cast<PlayedComm*>(comm)->rank) ? kSystemError : kSuccess;
}

TERRACE_PLAYED const char* ncclGetErrorString(int result) {
  return result == kSystemError ? "unhandled system error" : "invalid argument";
}

TERRACE_PLAYED int ncclGroupStart() {
  ++depth;
  return kSuccess;
}

TERRACE_PLAYED int ncclGroupEnd() {
  if (--depth > 0) return kSuccess;
  return begin(std::exchange(group, {}), group_stream);
}

TERRACE_PLAYED int ncclSend(const void* memory, size_t bytes, int, int peer, Comm comm, Stream stream) {
  auto* const sent = static_cast<std::byte*>(const_cast<void*>(memory));
  return put("ncclSend", {static_cast<PlayedComm*>(comm), peer, true, sent, bytes}, stream);
}

TERRACE_PLAYED int ncclRecv(void* memory, size_t bytes, int, int peer, Comm comm, Stream stream) {
  return put("ncclRecv",
             {static_cast<PlayedComm*>(comm), peer, false, static_cast<std::byte*>(memory), bytes}, stream);
}

// As the ranks of a store have no all-gathers of parameters on GPUs.
TERRACE_PLAYED int ncclAllGather(const void*, void*, size_t, int, Comm, Stream) {
  return kInvalid;
}
