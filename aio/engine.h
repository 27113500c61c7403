// Engine: asynchronous reads and writes of files, submitted in batches and completed by callback.
//
// Every engine has the same semantics; the kinds differ only in how bytes reach the kernel:
//  - A request is cut into pieces of `block_bytes`; at most `queue_depth` pieces are in flight at once.
//  - A short transfer is continued until the request is whole; EINTR and EAGAIN are retried.
//  - Reading past the end of the file ends with kEndOfFile and the bytes that were there.
//  - When the system stops serving the engine itself (io_uring_enter or io_getevents fail for about a
//    second), every request, in flight or still to come, ends with engine_stopped() as soon as the kernel has
//    let go of its memory.
//  - Sizes and offsets are 64 bits wide: a request of more than 4 GiB is an ordinary request.
//  - Requests have no order among each other; two that overlap must not be in flight together.
//  - Every accepted request gets exactly one callback, whatever happens to it. Nothing here throws after
//    creation.
//
// Threads: one thread at a time uses an engine, wake() apart, and the program orders the calls of different
// threads (a join, a lock). Any thread may go on where another has stopped, with requests in flight too, and
// the one before may have ended. Two threads inside at the same moment end the program. Callbacks run on the
// thread that calls submit(), poll() or wait(), inside that call, and may submit again: see Engine::submit().
// An engine never allocates per request once it is warm, and knows nothing of tensors.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace::io {

enum class OpKind : uint8_t { read, write };

// Critical requests are started before background ones, piece by piece; background work waits as long as
// critical work is queued.
enum class Priority : uint8_t { critical, background };

// The error of a read that reached the end of its file. No file operation reports ENODATA by itself.
inline constexpr int kEndOfFile = ENODATA;

// The error of a request whose engine the system no longer serves: the errno of the failed call, moved above
// every errno of a file operation.
inline constexpr int kEngineStopped = 1 << 16;
constexpr int engine_stopped(int call_error) {
  return kEngineStopped + call_error;
}
constexpr bool is_engine_stop(int error) {
  return error >= kEngineStopped;
}

struct Completion {
  int error;       // errno, kEndOfFile or engine_stopped(); 0 means the whole request was transferred
  uint64_t bytes;  // transferred without a gap from the start of the request; all of it when error is 0
  uint64_t tag;
};

struct Request {
  OpKind kind;
  int fd;
  uint64_t offset;
  std::byte* data;  // the caller keeps it alive and untouched until the callback
  uint64_t bytes;
  void (*on_complete)(void* context, const Completion& completion) noexcept;
  void* context;
  uint64_t tag;
  Priority priority = Priority::critical;
};

// With io_uring and libaio the kernel moves the bytes, with libaio only those of direct files; threads works
// wherever files do.
enum class EngineKind : uint8_t { io_uring, libaio, threads };

// Every kind, in order of preference.
std::span<const EngineKind> engine_kinds();
std::string_view name_of(EngineKind kind);
std::optional<EngineKind> engine_kind_from_name(std::string_view name);

struct EngineOptions {
  EngineKind kind = EngineKind::io_uring;
  // Measured (`terrace bench io --sweep`, docs/benchmarks.md): throughput is flat from 8 MiB in flight and
  // blocks of 512 KiB on; larger blocks cost less processor time, and blocks that are too large for the
  // system to send to the drive whole gain nothing more. 32 pieces of 1 MiB stay fast where other work delays
  // this thread.
  uint32_t queue_depth = 32;     // pieces in flight: 1 to 4096
  uint64_t block_bytes = kMiB;   // a multiple of 4 KiB, at most 1 GiB
  uint32_t thread_count = 2;     // threads only: 1 to 256
  uint32_t backlog_count = 256;  // requests that may wait for a place in flight: 1 to 65536
};

struct EngineStats {
  uint64_t requests = 0;    // accepted
  uint64_t failed = 0;      // completed with an error
  uint64_t bytes_read = 0;  // moved by the system, also for requests that failed later
  uint64_t bytes_written = 0;
  uint64_t pieces = 0;                   // handed to the system, continuations included
  uint64_t registered_pieces = 0;        // pieces through a registered buffer
  uint64_t registered_file_pieces = 0;   // pieces through a registered file
  uint64_t submit_calls = 0;             // system calls that handed pieces over; none with threads
  uint64_t short_transfers = 0;          // continued
  uint64_t retries = 0;                  // after EINTR and EAGAIN
  uint32_t peak_pieces_in_flight = 0;    // never above queue_depth
  uint32_t peak_requests_in_flight = 0;  // never above queue_depth + backlog_count
};

class Engine {
 public:
  // Finishes every accepted request and runs its callback.
  virtual ~Engine() = default;

  virtual EngineKind kind() const = 0;
  virtual const EngineOptions& options() const = 0;

  // Accepts all of `requests`, which are copied, and starts as many pieces as there is room for, in one
  // batch. At most queue_depth + backlog_count requests are held; when there is no room for the next one,
  // submit() waits for completions and runs their callbacks until there is. A request of zero bytes completes
  // before the outermost submit() returns. Otherwise submit() runs no callbacks. Inside a callback the place
  // of the completing request is free already, so submitting one request never waits; submitting more than
  // there is room for runs other callbacks inside this one. poll() and wait() must not be called from a
  // callback.
  virtual void submit(std::span<const Request> requests) = 0;

  // Runs the callbacks of completed requests and returns how many; never blocks.
  virtual size_t poll() = 0;

  // Blocks until at least min(min_count, in_flight()) requests have completed and their callbacks have run,
  // or until wake(). Returns how many completed.
  virtual size_t wait(size_t min_count) = 0;

  // Makes the wait() in progress, or else the next one, return early. Thread-safe.
  virtual void wake() noexcept = 0;

  // Requests accepted whose callback has not started yet.
  virtual uint64_t in_flight() const = 0;

  // Speeds up transfers that lie inside `memory`, where the engine can (io_uring fixed buffers, in pieces of
  // at most 1 GiB). False means that nothing changed and transfers work as before; registration_refusal()
  // says why. The memory must be unregistered before it is unmapped.
  virtual bool register_buffer(std::span<std::byte> memory) = 0;
  // Takes exactly a registered `memory`, of which no transfer may be in flight.
  virtual void unregister_buffer(std::span<std::byte> memory) = 0;
  // Speeds up transfers of the open file `fd` likewise (io_uring fixed files); it must not be registered
  // already. The kernel keeps a registered file open. So it must be unregistered before it is closed, or
  // requests for the next file with this number would go to the old one; until then its lock, or the space of
  // a removed file, is not free either.
  virtual bool register_file(int fd) = 0;
  // No transfer of the file may be in flight.
  virtual void unregister_file(int fd) = 0;
  // Why the last register_buffer() or register_file() that returned false did so.
  virtual std::string_view registration_refusal() const = 0;

  virtual EngineStats stats() const = 0;
};

struct ProbeResult {
  bool works;
  Reason reason;  // why not: "io_uring_setup: Operation not permitted (EPERM)"
};

// Creates and uses a small engine of this kind.
ProbeResult probe_engine(EngineKind kind);

struct EngineChoice {
  EngineKind kind;
  std::string reason;  // one line for the log
};

// The wanted kind, or the first of engine_kinds() that works here. Throws Error(io) with the reason when
// an explicitly wanted kind does not work.
EngineChoice choose_engine(std::optional<EngineKind> wanted);

// Throws Error(config) for options out of range and Error(io) when the engine cannot be created.
std::unique_ptr<Engine> make_engine(const EngineOptions& options);

}  // namespace terrace::io
