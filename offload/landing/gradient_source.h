// GradientSource: the complete gradients of a step, as an update reads them. An update never knows where they
// rest or how they got there.
#pragma once

#include <cstddef>
#include <optional>

#include <terrace/aio/engine.h>
#include <terrace/base/data_type.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// The thread that runs the update calls it.
class GradientSource {
 public:
  virtual ~GradientSource() = default;

  // The precision in which gradient() holds the chunk's gradient.
  virtual DataType type(ChunkId chunk) const = 0;
  // The chunk's gradient, in place until release(). A gradient that is not held has an address only while it
  // is open; one in device memory only inside a device operation, between open() and close().
  virtual std::byte* gradient(ChunkId chunk) = 0;
  // One tile of an open gradient in host memory: in place, or made in `scratch`, which has room for it.
  virtual const std::byte* tile(ChunkId chunk, uint64_t tile, std::byte* scratch) {
    (void)scratch;
    return gradient(chunk) + tile * kTileElements * bytes_of(type(chunk));
  }
  virtual void open(ChunkId) {}
  virtual void close(ChunkId) {}

  // True if the complete gradient lies in memory. If not, it is on nvme and passes through a staging slot.
  virtual bool is_held(ChunkId) const { return true; }
  // Makes gradient() point to the complete gradient, which is read through `engine` where it is not held.
  // Returns false when the gradient is not complete, or there is no room for it now. is_open() says when it
  // is there, and throws the failure of a read.
  virtual bool start_open(ChunkId chunk, io::Engine& engine) = 0;
  virtual bool is_open(ChunkId chunk) const = 0;
  // Says that the update is done with the chunk's gradient, and that every copy out of its memory is over.
  virtual void release(ChunkId chunk) = 0;
  // Gives up an opened gradient, which stays where it rests and may be opened again.
  virtual void put_back(ChunkId) {}
  // What to show while waiting for an opened gradient; empty if none is pending.
  virtual std::optional<WaitSubject> opening_subject() const { return std::nullopt; }
};

}  // namespace terrace
