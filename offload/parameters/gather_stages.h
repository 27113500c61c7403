// GatherStages: slots on the host through which chunks come together where the host does not reach device
// memory (OffloadOptions::gathers_by_copies). They are taken in turns.
//
// The step thread uses it; it allocates in its constructor only.
#pragma once

#include <cstdint>
#include <memory>

#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/transfer/device_copy.h>

namespace terrace {

class GatherStages {
 public:
  struct Stage {
    std::byte* memory = nullptr;  // room for a chunk
    CacheSlot* target = nullptr;  // of the last gather through it
    uint32_t fetches = kNone;     // the chunk whose fetch passes through it, until finished()
    DeviceCopy left;              // of the own share out of the device
    DeviceCopy arrived;           // of the shares of other ranks
  };

  // As many as the plan has (MemoryPlan::gather_slots). `run` outlives this.
  GatherStages(const RunContext& run, HostArena& arena);

  bool empty() const { return count_ == 0; }
  // The next one is not taken by a fetch that goes on.
  bool has_room() const { return stages_[next_].fetches == kNone; }
  // Takes the next one; waits for an earlier gather through it.
  Stage& take(ChunkId chunk, CacheSlot& slot, TransferReason reason);
  // The fetch of the chunk is over.
  void finished(ChunkId chunk);
  // Waits for what is under way. No copy to the device may be.
  void wait();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  const RunContext& run_;
  const uint32_t count_;
  const std::unique_ptr<Stage[]> stages_;
  uint32_t next_ = 0;
};

}  // namespace terrace
