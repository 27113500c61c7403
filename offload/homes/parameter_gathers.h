// ParameterGathers: how the shares of all ranks come together in a device slot. A rank brings its own share
// to its place there, and the others bring theirs. Every rank gathers the same chunks in the same order.
//
// The step thread uses it; it allocates in its constructor only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <terrace/comm/communicator.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/transfer/device_copy.h>

namespace terrace {

// SlotGather: the gathers into one slot of the device.
struct SlotGather {
  DeviceCopy share;                // of the own share into the slot
  std::vector<CommPart> to, from;  // by rank
};

class ParameterGathers {
 public:
  // `run` has ranks; `cache` gets its part in the gathers of its slots. Both outlive this.
  ParameterGathers(const RunContext& run, DeviceCache& cache);

  // The event of the own share's copy into the slot.
  DeviceCopy& share(const CacheSlot& slot) { return slots_[cache_.number_of(slot)].share; }
  // Gathers the chunk's parameters in the slot, which is detached, behind share(): begins slot.in, which is
  // done when all of them are there.
  void gather(ChunkId chunk, CacheSlot& slot);
  // Bytes of requested gathers: the same in every run.
  uint64_t in_bytes() const { return in_bytes_; }
  uint64_t out_bytes() const { return out_bytes_; }

 private:
  const RunContext& run_;
  DeviceCache& cache_;
  Communicator& ranks_;
  std::vector<SlotGather> slots_;
  uint64_t count_ = 0;
  uint64_t in_bytes_ = 0;
  uint64_t out_bytes_ = 0;
};

}  // namespace terrace
