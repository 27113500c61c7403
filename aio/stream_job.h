// run_stream(): measures one stream of equal blocks between a file and the ring, for `terrace bench io` and
// the measuring of a path. The ring's free slots are the only buffers: as many blocks are in flight as it has
// slots, and each slot is used again as soon as it is free. It must never touch bytes outside the region it
// is given, nor the data that it moves.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/aio/engine.h>
#include <terrace/aio/latency_histogram.h>
#include <terrace/aio/ring_buffer.h>
#include <terrace/base/clock.h>

namespace terrace::io {

enum class StreamKind : uint8_t {
  read,
  write,
  mixed,   // each block is read or written, read_percent of them read, evenly among each other
  update,  // each block is read and written back from the same slot, as an optimizer's step does
};

struct StreamOptions {
  StreamKind kind = StreamKind::read;
  bool random = false;         // in random order; every block of the region comes once before any comes again
  uint32_t read_percent = 50;  // mixed only
  uint64_t block_bytes = 0;    // at most the ring's slots
  uint64_t region_bytes = 0;   // from the beginning of the file; a multiple of block_bytes
  // The stream ends when it has moved `io_bytes`, both directions together, or when `runtime_ns` has passed,
  // whichever comes first. 0 is no limit; one of them must be positive.
  uint64_t io_bytes = 0;
  uint64_t runtime_ns = 0;
  uint64_t seed = 1;
};

struct StreamDirection {
  uint64_t bytes = 0;
  uint64_t operations = 0;
  LatencyHistogram submission;  // until the engine has taken the operation
  LatencyHistogram completion;  // from then until it has completed
  LatencyHistogram total;
};

struct StreamFailure {
  Request request;
  Completion completion;
};

struct StreamResult {
  StreamDirection read;
  StreamDirection write;
  uint64_t elapsed_ns = 0;
  // The counters below are those of the whole process, which must run nothing else meanwhile.
  uint64_t user_ns = 0;
  uint64_t system_ns = 0;
  uint64_t context_switches = 0;
  uint64_t major_faults = 0;
  uint64_t minor_faults = 0;
  std::optional<StreamFailure> failure;  // the first one; it ended the stream
};

// Call it with nothing in flight and every slot of the ring free. Returns with nothing in flight.
StreamResult run_stream(Engine& engine, RingBuffer& ring, int fd, const StreamOptions& options,
                        const Clock& clock);

}  // namespace terrace::io
