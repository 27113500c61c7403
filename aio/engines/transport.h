// Transport: the layer below an Engine that moves single pieces and knows nothing of requests, continuation,
// retries or callbacks. Those are written once, above it, so a transport that is short, slow or broken on
// purpose (FaultTransport, the tests' fakes) exercises the same code as the kernel does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <terrace/aio/engine.h>

namespace terrace::io {

struct Piece {
  OpKind kind;
  int fd;
  uint64_t offset;
  std::byte* data;
  uint32_t bytes;  // 1 to 1 GiB
  uint32_t id;     // below queue_depth; unique among the pieces in flight
};

struct PieceResult {
  uint32_t id;
  int64_t result;  // bytes moved, as read(2) and write(2) return them, or a negated error of Completion
};

struct Reaped {
  size_t count;
  bool woken;  // wake() was called since the last reap
};

struct TransportStats {
  uint64_t registered_pieces = 0;       // started through a registered buffer
  uint64_t registered_file_pieces = 0;  // started through a registered file
  uint64_t submit_calls = 0;            // system calls that handed pieces over
};

// One thread at a time uses a transport, wake() apart, and not always the same one. The engine above never
// has more than queue_depth pieces in flight and destroys a transport only when none is.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual EngineKind kind() const = 0;
  // Hands all pieces over in one batch; does not wait for them.
  virtual void start(std::span<const Piece> pieces) = 0;
  // Takes finished pieces. With `block`, and something in flight, it returns no sooner than one has finished
  // or wake() was called. A transport that the system no longer serves answers every piece with
  // engine_stopped().
  virtual Reaped reap(std::span<PieceResult> results, bool block) = 0;
  // Ends the reap() that sleeps, or else the next one. Thread-safe. When the system fails the wake itself, a
  // reap() that sleeps already learns of it with the next piece that finishes.
  virtual void wake() noexcept = 0;

  // These do what Engine's functions of the same names do.
  virtual bool register_buffer(std::span<std::byte> memory) = 0;
  virtual void unregister_buffer(std::span<std::byte> memory) = 0;
  virtual bool register_file(int fd) = 0;
  virtual void unregister_file(int fd) = 0;
  virtual std::string_view registration_refusal() const = 0;
  virtual TransportStats stats() const = 0;
};

// Throws Error(config) naming the option that is out of range.
void check_options(const EngineOptions& options);

// Makes the transport of options.kind. Throws as make_engine() does.
std::unique_ptr<Transport> make_transport(const EngineOptions& options);

// Makes the engine that all kinds share, over any transport. Throws Error(config) for options out of range.
std::unique_ptr<Engine> make_engine_over(std::unique_ptr<Transport> transport, const EngineOptions& options);

}  // namespace terrace::io
