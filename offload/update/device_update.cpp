#include <terrace/offload/update/device_update.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/offload/watch/recorded_update.h>

namespace terrace {

DeviceUpdate::DeviceUpdate(const RunContext& run, const StateHomes& homes, TileUpdate& tiles,
                           DeviceCache& cache, io::Engine* engine)
    : shards_(run.shards),
      records_(homes.records),
      gradients_(homes.gradients),
      home_(homes.params),
      tiles_(tiles),
      cache_(cache),
      device_(run.device),
      workers_(run.workers),
      engine_(engine),
      tile_bytes_(run.plan.record_layout.tile_bytes()),
      block_tiles_(run.plan.ring_slot_bytes / tile_bytes_) {}

void DeviceUpdate::run(const UpdateConstants& constants, std::span<const ChunkId> chunks) {
  tiles_.begin(constants);
  leaving_ = {};
  std::exception_ptr failure;
  try {
    for (const ChunkId chunk : chunks) update(chunk);
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    home_.publication().finish(engine_);
  } catch (...) {
    if (failure == nullptr) failure = std::current_exception();
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void DeviceUpdate::look(const UpdateConstants& constants, std::span<const ChunkId> chunks) {
  tiles_.begin(constants);
  for (const ChunkId chunk : chunks) {
    records_.open(chunk);
    gradients_.open(chunk);
    for_each_block(chunk, [&](uint64_t first, uint64_t count) {
      tiles_.look(chunk, first, count, records_.resident(chunk) + first * tile_bytes_);
    });
    gradients_.close(chunk);
    records_.close(chunk);
  }
}

// Blocks for the workers, or all tiles for the device.
void DeviceUpdate::for_each_block(ChunkId chunk, FunctionRef<void(uint64_t, uint64_t)> body) {
  const uint64_t tiles = shards_.own(chunk).tile_count;
  if (!tiles_.is_on_workers()) return body(0, tiles);
  workers_.parallel_for(divide_up(tiles, block_tiles_), [&](size_t task) {
    const uint64_t first = task * block_tiles_;
    body(first, std::min(block_tiles_, tiles - first));
  });
}

void DeviceUpdate::update(ChunkId chunk) {
  if (home_.device_shares() != nullptr) return compute(chunk, home_.device_shares()->of(chunk));
  const bool stays = home_.placement() == Placement::none;
  if (!stays) {
    const Schedule unknown;
    CacheSlot* slot = cache_.take_slot(EvictionContext{unknown, kNever});
    TERRACE_ASSERT(slot != nullptr, "the plan keeps a device slot for parameters on their way out");
    cache_.begin_in_place(chunk, *slot);
  }
  cache_.pin_param(chunk);
  cache_.attach_param(chunk);
  compute(chunk, cache_.param_address(chunk) + shards_.first_param_byte(chunk));
  cache_.unpin_param(chunk);
  if (!stays) send_home(chunk);
}

void DeviceUpdate::compute(ChunkId chunk, std::byte* parameters) {
  records_.open(chunk);
  gradients_.open(chunk);
  for_each_block(chunk, [&](uint64_t first, uint64_t count) {
    const RecordedUpdate recorded(cache_.watch().events(), workers_, chunk, count * tile_bytes_);
    tiles_.update_into(chunk, first, count, records_.resident(chunk) + first * tile_bytes_, parameters);
  });
  gradients_.close(chunk);
  records_.close(chunk);
  gradients_.release(chunk);
}

void DeviceUpdate::send_home(ChunkId chunk) {
  std::byte* const slot_at_home = home_.host_slot(chunk);
  std::byte* const buffer = slot_at_home != nullptr ? slot_at_home : landing();
  cache_.detach_param(chunk);
  CacheSlot& slot = cache_.param_slot(chunk);
  slot.out.begin(to_host_copy("fresh parameters", chunk));
  device_.copy_to_host(buffer, slot.id, shards_.first_param_byte(chunk), shards_.param_bytes(chunk), nullptr,
                       slot.out,
                       from_device_note(cache_.watch().events(), TransferRole::param, TransferReason::update,
                                        index_of(chunk)));
  d2h_bytes_ += shards_.param_bytes(chunk);
  slot.out.wait(cache_.watch());
  const Event* const gone = home_.publication().publish(chunk, buffer, engine_, &cache_);
  if (gone != nullptr) leaving_[lane_] = gone;
  // The chunks updated first are needed first by the next forward, so a chunk stays as long as the next one
  // has room.
  if (cache_.unused_slot_count() == 0) cache_.drop_stale_param(chunk);
}

// Returns the landing slot that was taken longest ago, once it is empty.
std::byte* DeviceUpdate::landing() {
  lane_ = (lane_ + 1) % leaving_.size();
  if (leaving_[lane_] != nullptr) {
    home_.publication().wait(*leaving_[lane_], engine_);
    home_.publication().forget(*leaving_[lane_]);
  }
  leaving_[lane_] = nullptr;
  return gradients_.landing_slot(lane_);
}

}  // namespace terrace
