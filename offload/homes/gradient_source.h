// GradientSource: the complete gradients of a step, as an update reads them. Where they rest, and how they
// got there, an update never knows.
#pragma once

#include <cstddef>
#include <optional>

#include <terrace/aio/engine.h>
#include <terrace/base/data_type.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// Called by the thread that runs the update.
class GradientSource {
 public:
  virtual ~GradientSource() = default;

  // The precision in which gradient() holds the chunk's gradient.
  virtual DataType type(ChunkId chunk) const = 0;
  // The chunk's gradient, in place until release(). Of a gradient that is not held only while it is open; in
  // device memory only inside a device operation, between open() and close().
  virtual std::byte* gradient(ChunkId chunk) = 0;
  virtual void open(ChunkId) {}
  virtual void close(ChunkId) {}

  // Whether the complete gradient lies in memory. Else it is on nvme and passes through a staging slot.
  virtual bool is_held(ChunkId) const { return true; }
  // Makes gradient() point to the complete gradient, which is read through `engine` where it is not held:
  // false when it is not complete, or there is no room for it now. It is there when is_open() says so, which
  // throws what a read failed with.
  virtual bool start_open(ChunkId chunk, io::Engine& engine) = 0;
  virtual bool is_open(ChunkId chunk) const = 0;
  // The update is done with the chunk's gradient, and whatever leaves from its memory has left.
  virtual void release(ChunkId chunk) = 0;
  // What to show while waiting for an opened gradient; empty if none is pending.
  virtual std::optional<WaitSubject> opening_subject() const { return std::nullopt; }
};

}  // namespace terrace
