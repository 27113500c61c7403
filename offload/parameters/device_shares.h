// DeviceShares: the home of parameters in device memory, where ranks divide those that live there
// (OffloadOptions::divides_parameters): this rank's share of every chunk. A fetch copies a share from here to
// its place in a slot, and an update writes the new one here. No slot holds the only copy of anything.
//
// The step thread uses it; while an update runs on that thread, the update does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <terrace/memory/device/device.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/transfer/device_copy.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class DeviceShares {
 public:
  // Takes the plan's memory from the device. All references outlive this.
  DeviceShares(const ChunkShards& shards, const MemoryPlan& plan, Device& device, StepWatch& watch);
  // Waits for the copies that come here.
  ~DeviceShares();

  // The chunk's share in device memory, from its first element on.
  std::byte* of(ChunkId chunk) const { return shares_[index_of(chunk)]; }
  // The last copy of new parameters to the chunk's share.
  const DeviceCopy& written(ChunkId chunk) const { return written_[index_of(chunk)]; }
  // Begins to copy `bytes` new parameters to the share, from its byte `first_byte` on, behind `after` (null:
  // at once). No fetch of the chunk is under way. Whoever uses the share afterwards waits for written().
  const DeviceCopy& write(ChunkId chunk, uint64_t first_byte, const std::byte* source, uint64_t bytes,
                          const Event* after);
  // Begins to copy the share to its place in the slot, behind written() and what leaves the slot; `share` has
  // been begun.
  void copy_to(ChunkId chunk, CacheSlot& slot, DeviceCopy& share);
  // Begins to copy a part of the share to host memory, behind written(); `arrived` has been begun.
  void copy_to_host(ChunkId chunk, uint64_t first_byte, std::byte* destination, uint64_t bytes,
                    TransferReason reason, DeviceCopy& arrived) const;
  // Reads a part of the share, blocking.
  void read(ChunkId chunk, uint64_t first_byte, std::byte* destination, uint64_t bytes) const;

 private:
  const ChunkShards& shards_;
  Device& device_;
  StepWatch& watch_;
  std::vector<std::byte*> shares_;               // by chunk
  const std::unique_ptr<DeviceCopy[]> written_;  // by chunk
};

}  // namespace terrace
