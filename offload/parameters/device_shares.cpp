#include <terrace/offload/parameters/device_shares.h>

namespace terrace {

// Ranks plan alike, so every chunk has the room of the first rank's share, which is the longest.
DeviceShares::DeviceShares(const ChunkShards& shards, const MemoryPlan& plan, Device& device,
                           StepWatch& watch)
    : shards_(shards),
      device_(device),
      watch_(watch),
      shares_(shards.space().chunk_count()),
      written_(std::make_unique<DeviceCopy[]>(shards.space().chunk_count())) {
  std::byte* next = device.allocate_work_memory(plan.device_share_bytes).data();
  for (uint32_t c = 0; c < shards.space().chunk_count(); ++c) {
    const Section& section = shards.space().section_of(ChunkId{c});
    if (section.home == TensorHome::caller) continue;
    shares_[c] = next;
    next += shards.of(ChunkId{c}, 0).elements() * bytes_of(section.type);
  }
}

DeviceShares::~DeviceShares() {
  for (uint32_t c = 0; c < shares_.size(); ++c) written_[c].wait_done();
}

const DeviceCopy& DeviceShares::write(ChunkId chunk, uint64_t first_byte, const std::byte* source,
                                      uint64_t bytes, const Event* after) {
  DeviceCopy& copy = written_[index_of(chunk)];
  copy.wait_done(watch_);  // nobody may have needed the one before
  copy.begin(to_device_copy("fresh parameters", chunk));
  device_.copy_to_work(of(chunk) + first_byte, source, bytes, after, copy,
                       updated_to_device_note(watch_.events(), index_of(chunk)));
  return copy;
}

// A copy has one predecessor, so if there are two, an empty copy in front of it waits for the slot.
void DeviceShares::copy_to(ChunkId chunk, CacheSlot& slot, DeviceCopy& share) {
  const DeviceCopy& fresh = written(chunk);
  const bool is_there = fresh.done() && !fresh.failed();
  if (!is_there && !slot.out.done()) {
    wait_done_watched(slot.fence, watch_, slot.out.subject());
    slot.fence.begin();
    device_.copy_work_to_slot(slot.id, 0, of(chunk), 0, &slot.out, slot.fence);
  }
  device_.copy_work_to_slot(slot.id, shards_.first_param_byte(chunk), of(chunk), shards_.param_bytes(chunk),
                            is_there ? &slot.out : &fresh, share);
}

void DeviceShares::copy_to_host(ChunkId chunk, uint64_t first_byte, std::byte* destination, uint64_t bytes,
                                TransferReason reason, DeviceCopy& arrived) const {
  device_.copy_work_to_host(destination, of(chunk) + first_byte, bytes, &written(chunk), arrived,
                            from_device_note(watch_.events(), TransferRole::param, reason, index_of(chunk)));
}

void DeviceShares::read(ChunkId chunk, uint64_t first_byte, std::byte* destination, uint64_t bytes) const {
  DeviceCopy arrived;
  arrived.begin(to_host_copy("parameters", chunk));
  copy_to_host(chunk, first_byte, destination, bytes, TransferReason::other, arrived);
  arrived.wait(watch_);
}

}  // namespace terrace
