// run_stream(): one stream of equal blocks between a file and the ring, measured; what `terrace bench io` and
// the measuring of a path stand on. The ring's free slots are the only buffers: as many blocks are in flight
// as it has slots, and each slot is used again as soon as it is free. It must never touch bytes outside the
// region it is given, nor the data that it moves.
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
  bool random = false;         // every block of the region once, in no order, before any comes again
  uint32_t read_percent = 50;  // of mixed
  uint64_t block_bytes = 0;    // at most the ring's slots
  uint64_t region_bytes = 0;   // of the file, from its beginning; a multiple of block_bytes
  // When the stream ends: when so many bytes have been moved, both directions together, or so much time has
  // passed, whichever comes first. Not both 0.
  uint64_t io_bytes = 0;
  uint64_t runtime_ns = 0;
  uint64_t seed = 1;
};

struct StreamDirection {
  uint64_t bytes = 0;
  uint64_t operations = 0;
  LatencyHistogram submission;  // until the engine has taken the operation
  LatencyHistogram completion;  // from there to its end
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
  // Of the whole process, which runs nothing else meanwhile.
  uint64_t user_ns = 0;
  uint64_t system_ns = 0;
  uint64_t context_switches = 0;
  uint64_t major_faults = 0;
  uint64_t minor_faults = 0;
  std::optional<StreamFailure> failure;  // the first one; it ended the stream
};

// The engine's owner thread calls it, with nothing in flight and every slot of the ring free. Returns with
// nothing in flight.
StreamResult run_stream(Engine& engine, RingBuffer& ring, int fd, const StreamOptions& options,
                        const Clock& clock);

}  // namespace terrace::io
