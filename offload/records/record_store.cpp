#include <terrace/offload/records/record_store.h>

#include <cstring>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/plan/host_slots.h>
#include <terrace/offload/transfer/device_copy.h>

namespace terrace {
namespace {

constexpr const char* kStates = "optimizer states";  // the name that the watch gives to waits

}  // namespace

RecordStore::RecordStore(const RunContext& run, HostArena& arena, BlockStore* store, io::Engine* engine)
    : shards_(run.shards),
      placement_(run.options.states),
      device_(run.device),
      store_(store),
      engine_(engine),
      watch_(run.watch),
      arena_(arena),
      slot_bytes_(run.plan.record_slot_bytes),
      tile_bytes_(run.plan.record_layout.tile_bytes()),
      block_tiles_(run.plan.ring_slot_bytes / run.plan.record_layout.tile_bytes()),
      memory_(run.space.chunk_count(), nullptr),
      is_newer_(memory_.size()),
      locked_for_device_(memory_.size()),
      locks_(memory_.size()) {
  TERRACE_ASSERT((placement_ == Placement::nvme) == (store != nullptr && engine != nullptr),
                 "a store and its engine belong to states on nvme");
  const FlatSpace& space = run.space;
  const MemoryPlan& plan = run.plan;
  std::vector<uint32_t> trainable;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (space.section_of(ChunkId{c}).trainable) trainable.push_back(c);
  }
  const auto count = static_cast<uint32_t>(trainable.size());
  const std::vector<std::byte*> host =
      carve_slots(arena, plan.record_slot_bytes, plan.host_record_slots, "optimizer states");
  std::vector<DeviceSlot> slots;
  std::byte* base = nullptr;
  if (placement_ == Placement::none && count > 0) {
    slots = device_.create_slots(plan.record_slot_bytes, count, "optimizer states");
    base = device_.reserve_addresses(count * plan.record_slot_bytes);
    device_slots_.resize(space.chunk_count());
  }
  size_t next_host = 0;
  for (uint32_t t = 0; t < count; ++t) {
    const ChunkId chunk{trainable[t]};
    if (placement_ == Placement::none) {
      device_slots_[trainable[t]] = slots[t];
      memory_[trainable[t]] = base + t * plan.record_slot_bytes;
      if (!device_.strict()) device_.attach(slots[t], memory_[trainable[t]]);
    } else if (is_kept(t, plan.host_record_slots, count)) {
      memory_[trainable[t]] = host[next_host++];
      ++kept_count_;
    } else {
      streamed_bytes_ += record_bytes(chunk);
    }
  }
}

bool RecordStore::is_streamed(ChunkId chunk) const {
  return memory_[index_of(chunk)] == nullptr && shards_.space().section_of(chunk).trainable &&
         shards_.own(chunk).tile_count > 0;
}

void RecordStore::open(ChunkId chunk) {
  if (placement_ == Placement::none && device_.strict())
    device_.attach(device_slots_[index_of(chunk)], resident(chunk));
}

void RecordStore::close(ChunkId chunk) {
  if (placement_ == Placement::none && device_.strict()) device_.detach(device_slots_[index_of(chunk)]);
}

void RecordStore::before_change(ChunkId chunk) {
  is_newer_[index_of(chunk)] = true;
  if (committer_ != nullptr) committer_->before_change(chunk);
}

bool RecordStore::begin_write(ChunkId chunk, uint32_t block, std::span<const std::byte> source,
                              BlockStore::Write& write, const io::Engine& engine) {
  if (committer_ != nullptr)
    return committer_->begin_write(CommitPart::records, engine, chunk, block, source, write);
  const bool begun = store_->begin_write(chunk, block, source, write);
  TERRACE_ASSERT(begun, "a block that is written in place has its slot");
  return true;
}

void RecordStore::read(ChunkId chunk, uint64_t first_tile, std::span<std::byte> tiles) {
  const uint64_t offset = first_tile * tile_bytes_;
  if (is_streamed(chunk)) {
    BlockTransfer reading;
    reading.start_read(*store_, chunk, block_at(first_tile), tiles, TransferPort(*engine_),
                       {.what = kStates});
    reading.finish(watch_);
  } else if (placement_ == Placement::none) {
    const DeviceSlot slot = device_slots_[index_of(chunk)];
    if (!device_.strict()) device_.detach(slot);
    DeviceCopy done;
    done.begin(to_host_copy(kStates, chunk));
    device_.copy_to_host(
        tiles.data(), slot, offset, tiles.size(), nullptr, done,
        from_device_note(watch_.events(), TransferRole::state, TransferReason::other, index_of(chunk)));
    done.wait(watch_);
    if (!device_.strict()) device_.attach(slot, resident(chunk));
  } else {
    std::memcpy(tiles.data(), resident(chunk) + offset, tiles.size());
  }
}

void RecordStore::start_write(ChunkId chunk, uint64_t first_tile, std::span<const std::byte> tiles,
                              BlockTransfer& write) {
  const uint64_t offset = first_tile * tile_bytes_;
  if (is_streamed(chunk)) {
    start_block_write(chunk, block_at(first_tile), tiles, write);
  } else if (placement_ == Placement::none) {
    const DeviceSlot slot = device_slots_[index_of(chunk)];
    if (!device_.strict()) device_.detach(slot);
    DeviceCopy done;
    done.begin(to_device_copy(kStates, chunk));
    device_.copy_to_device(
        slot, offset, tiles.data(), tiles.size(), nullptr, done,
        to_device_note(watch_.events(), TransferRole::state, TransferReason::other, index_of(chunk)));
    done.wait(watch_);
    if (!device_.strict()) device_.attach(slot, resident(chunk));
  } else {
    is_newer_[index_of(chunk)] = true;
    if (!arena_.is_dry()) std::memcpy(resident(chunk) + offset, tiles.data(), tiles.size());
  }
}

void RecordStore::start_block_write(ChunkId chunk, uint32_t block, std::span<const std::byte> bytes,
                                    BlockTransfer& write) {
  while (!begin_write(chunk, block, bytes, write.write(), *engine_))
    wait_watched(*engine_, watch_,
                 {"room in the tier", "host -> nvme", TimeCause::write, chunk, nullptr, {}});
  write.start_write(*store_, TransferPort(*engine_), {.what = kStates});
}

}  // namespace terrace
