// UringRing: one io_uring with its tables of registered buffers and files. It must never let liburing's
// header into another file, nor decide which pieces are started when: UringTransport does.
//
// The completion queue cannot overflow: the kernel makes it twice as long as the submission queue, whose
// length is the most that the caller ever has in flight.
//
// A call that the kernel refuses is made again for about a second; then the ring has failed: failure() says
// so, nothing more is added or taken, and retire() must be called before memory of its pieces is given back.
//
// Any thread may use the ring, one at a time: it has neither SINGLE_ISSUER nor DEFER_TASKRUN, which bind a
// ring to one thread and were not measurably faster (docs/benchmarks.md), nor COOP_TASKRUN, without which a
// completion soon reaches a thread that waits for what another one has started.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/aio/engines/piece_ledger.h>
#include <terrace/aio/engines/transport.h>
#include <terrace/base/error.h>

struct io_uring;
struct io_uring_sqe;

namespace terrace::io {

class UringRing {
 public:
  struct Taken {
    uint64_t id;  // Piece::id, or kWakeId
    int32_t result;
  };
  static constexpr uint64_t kWakeId = UINT64_MAX;

  // Returns null, with the reason in `words`, when io_uring does not work here.
  static std::unique_ptr<UringRing> create(uint32_t most_in_flight, Reason& words);
  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  // The errno of the call that the kernel refused; 0 while the ring works.
  int failure() const { return failure_; }
  // Ends the ring. Returns when the kernel has let go of every piece, moved or not.
  void retire();

  // The parts of a piece that go through a registration.
  struct Registered {
    bool memory;
    bool file;
  };
  // Queues the piece until submit().
  Registered add(const Piece& piece);
  // Queues a wait that completes with kWakeId once `event_fd` can be read.
  void add_wake(int event_fd);
  // Hands over all that was added, in one system call unless the kernel refuses for a moment and is asked
  // again. Returns the number of calls.
  uint64_t submit();
  // Takes the next completion; with `block` it waits for one. Returns false when there is none, the wait was
  // interrupted, or the kernel refused it.
  bool take(Taken& taken, bool block);

  // These do what Transport's functions of the same names do.
  bool register_buffer(std::span<std::byte> memory);
  void unregister_buffer(std::span<std::byte> memory);
  bool register_file(int fd);
  void unregister_file(int fd);
  std::string_view registration_refusal() const { return refusal_; }

 private:
  // Memory registered as fixed buffer `index`.
  struct RegisteredMemory {
    std::byte* begin;
    std::byte* end;
    uint32_t index;
  };
  // A file registered as fixed file `index`.
  struct RegisteredFile {
    int fd;
    uint32_t index;
  };

  UringRing();
  Reason make_file_table();
  io_uring_sqe* next_entry();  // null once the ring has failed
  const RegisteredMemory* memory_of(const Piece& piece) const;
  const RegisteredFile* file_of(int fd) const;
  bool make_buffer_table();
  int update_buffer(uint32_t index, std::byte* data, uint64_t bytes);

  std::unique_ptr<io_uring> ring_;
  // The pipe in which retire() sees the end. It is there, and in the table of files, from the beginning: when
  // a ring has failed, the system may refuse a descriptor, or another registration.
  std::array<int, 2> end_{-1, -1};
  bool created_ = false;
  int failure_ = 0;
  CallPatience patience_;
  bool has_buffer_table_ = false;
  std::vector<uint32_t> free_buffers_;            // free places of the buffer table, the lowest last
  std::vector<uint32_t> free_files_;              // free places of the file table, the lowest last
  std::vector<RegisteredMemory> registered_;      // by address
  std::vector<RegisteredFile> registered_files_;  // few
  std::string files_refusal_;                     // why there is no table of files; empty: there is one
  std::string refusal_;
};

}  // namespace terrace::io
