// Gathers: how what a rank brings into a device slot becomes the whole chunk.
//
//   NoGathers         there is one rank, and what it brings is the whole chunk
//   ParameterGathers  a rank brings its share, and gathers bring those of the others (parameter_gathers.h)
//   PulledParameters  it reads those of the others when it needs them (pulled_parameters.h)
//
// The step thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/base/event.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/parameters/parameter_homes.h>
#include <terrace/offload/plan/rank_bytes.h>
#include <terrace/offload/transfer/device_copy.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// HostShare: where the own share lies in host memory, from `ready` on (null: now) until the gather is over.
// Without `memory` it is in the slot only.
struct HostShare {
  const std::byte* memory = nullptr;
  const Event* ready = nullptr;
};

class Gathers {
 public:
  virtual ~Gathers() = default;

  // The event of the own share's copy into the slot.
  virtual DeviceCopy& share(CacheSlot& slot) = 0;
  // The event that is done when the host memory of the own share, on its way to the slot, may change.
  virtual const DeviceCopy& share_left(CacheSlot& slot) = 0;
  // Brings what is missing of the chunk's parameters to the slot, which is detached, behind share(): slot.in
  // is done when all of them are there. `reason` is that of the recorded copies.
  virtual void gather(ChunkId chunk, CacheSlot& slot, const HostShare& own, TransferReason reason) = 0;
  // The way on which a chunk becomes whole, for waits.
  virtual CopyName::Link link() const = 0;
  // False if each gather is waited for where it is asked for.
  virtual bool overlap() const = 0;
  // True if a gather would start without waiting for a fetch that finished() has not been called for.
  virtual bool has_room() const = 0;
  // The chunk's fetch has arrived.
  virtual void finished(ChunkId chunk) = 0;
  // The chunk's parameters change: what is kept of them is not theirs any more.
  virtual void forget(ChunkId chunk) = 0;

  // --- Where ranks pull ---
  // The homes of the own shares, before the first gather.
  virtual void serve(const ParameterHomes&) {}
  // The state is about to be loaded; it has been. All ranks call both.
  virtual void begin_load() {}
  virtual void end_load() {}
  // Waits for gathers under way: when all ranks have, shares may change.
  virtual void finish_reads() {}
  // An update begins; the chunk's share is home, as any thread says; the update is over, but for chunks that
  // are pending and whose updated() follows.
  virtual void begin_update() {}
  virtual void updated(ChunkId) {}
  virtual void end_update(FunctionRef<bool(ChunkId)> is_pending) { (void)is_pending; }

  // What has come to this rank, held against what the owners have (GatherComparison).
  virtual void begin_step(uint64_t count) = 0;
  virtual void note_use(ChunkId chunk, const std::byte* parameters) = 0;
  virtual void compare(uint64_t step) = 0;

  // Bytes of requested gathers, and of copies for them beside that of the own share: the same in every run.
  virtual RankBytes moved() const = 0;
  virtual uint64_t h2d_bytes() const = 0;
  virtual uint64_t d2h_bytes() const = 0;
};

class NoGathers final : public Gathers {
 public:
  DeviceCopy& share(CacheSlot& slot) override { return slot.in; }
  const DeviceCopy& share_left(CacheSlot& slot) override { return slot.in; }
  void gather(ChunkId, CacheSlot&, const HostShare&, TransferReason) override {}
  CopyName::Link link() const override { return CopyName::Link::host_to_device; }
  bool overlap() const override { return true; }
  bool has_room() const override { return true; }
  void finished(ChunkId) override {}
  void forget(ChunkId) override {}
  void begin_step(uint64_t) override {}
  void note_use(ChunkId, const std::byte*) override {}
  void compare(uint64_t) override {}
  RankBytes moved() const override { return {}; }
  uint64_t h2d_bytes() const override { return 0; }
  uint64_t d2h_bytes() const override { return 0; }
};

}  // namespace terrace
