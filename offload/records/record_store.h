// RecordStore: the place of the own tiles of every trainable chunk's optimizer states: device memory, host
// slots, or the tier file with some chunks resident in host slots. The resident set changes with the host
// budget alone: all records are used once per step and become dirty, so a fixed set has the least traffic of
// any policy (least recently used would save nothing). One thread at a time uses it: the step thread, or the
// thread that runs an update for it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/commits/committer.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class RecordStore {
 public:
  // `store` and `engine` are null unless states are on nvme. Host slots are carved from `arena`. No engine
  // registers them, so their pages can be given back.
  RecordStore(const RunContext& run, HostArena& arena, BlockStore* store, io::Engine* engine);

  Placement placement() const { return placement_; }
  bool is_streamed(ChunkId chunk) const;
  // The chunk's records in the memory where they are updated: a host slot, or device memory (between open()
  // and close()).
  std::byte* resident(ChunkId chunk) const { return memory_[index_of(chunk)]; }
  void open(ChunkId chunk);
  void close(ChunkId chunk);

  // True if resident records were changed since the store last wrote or read them. Writes by commits do not
  // count.
  bool is_newer(ChunkId chunk) const { return is_newer_[index_of(chunk)]; }

  // Locks the pages of the host slots of `chunks` for copies by the device, as long as these chunks are
  // resident.
  void lock_for_device(const std::vector<bool>& chunks);

  // Lets commits read resident records and share the store's slots; null: there are no commits.
  void commit_with(Committer* committer) { committer_ = committer; }
  // True if resident records may be changed without waiting for a commit. If not, the commit writes them
  // next.
  bool may_change(ChunkId chunk) { return committer_ == nullptr || committer_->may_change(chunk); }
  // Waits until resident records may be changed, and marks them newer.
  void before_change(ChunkId chunk);
  // Calls BlockStore::begin_write(), but waits for the commit in progress where it has the slots. Returns
  // false if only writes of `engine` may still free a slot. Throws Error(capacity) when there is none.
  bool begin_write(ChunkId chunk, uint32_t block, std::span<const std::byte> source, BlockStore::Write& write,
                   const io::Engine& engine);

  // read() and start_write() copy one block of tiles, for initialisation and checkpoints.
  void read(ChunkId chunk, uint64_t first_tile, std::span<std::byte> tiles);
  // `write` and `tiles` stay until write.finish(). Where records are not streamed, the copy is done on
  // return.
  void start_write(ChunkId chunk, uint64_t first_tile, std::span<const std::byte> tiles,
                   BlockTransfer& write);

  // --- The budget changes; between steps, states on nvme ---
  // The number of chunks whose records are resident.
  uint32_t kept_count() const { return kept_count_; }
  // Makes `count` chunks resident, at most the plan's number. Records that leave are written where the tier
  // does not have them, and their pages go back to the system; records that enter are read. Nothing else
  // moves. No commit may be in progress; `knows_cached` says that the committer knows the resident chunks.
  // Throws Error(capacity) when the system does not have the pages, and the failure of a transfer: the chunks
  // before the failed one have then moved.
  void keep(uint32_t count, bool knows_cached);
  // Bytes of the host slots whose pages were given back to the system.
  uint64_t given_back_bytes() const { return free_slots_.size() * slot_bytes_; }
  uint64_t left_bytes() const { return left_bytes_; }  // bytes written because records left host memory
  uint64_t entered_bytes() const { return entered_bytes_; }

  BlockStore* store() const { return store_; }
  uint64_t streamed_bytes() const { return streamed_bytes_; }

 private:
  uint32_t block_at(uint64_t first_tile) const { return static_cast<uint32_t>(first_tile / block_tiles_); }
  uint64_t record_bytes(ChunkId chunk) const { return shards_.own(chunk).tile_count * tile_bytes_; }
  std::vector<ChunkId> trainable_chunks(bool kept) const;
  void lock(ChunkId chunk);
  void write_back(ChunkId chunk);
  void read_in(ChunkId chunk, std::byte* memory);
  void leave(ChunkId chunk, bool knows_cached);
  void enter(ChunkId chunk, bool knows_cached);
  void start_block_write(ChunkId chunk, uint32_t block, std::span<const std::byte> bytes,
                         BlockTransfer& write);

  const ChunkShards& shards_;
  Placement placement_;
  Device& device_;
  BlockStore* store_;
  Committer* committer_ = nullptr;
  io::Engine* engine_;
  StepWatch& watch_;
  HostArena& arena_;
  uint64_t slot_bytes_;  // bytes of a chunk's records
  uint64_t tile_bytes_;
  uint64_t block_tiles_;                                // tiles of a block of the store
  std::vector<std::byte*> memory_;                      // per chunk; null: in the tier file, or frozen
  std::vector<bool> is_newer_;                          // per resident chunk: newer than the tier file
  std::vector<std::byte*> free_slots_;                  // host slots whose pages were given back
  std::vector<bool> locked_for_device_;                 // per chunk: locked while it is resident
  std::vector<std::unique_ptr<HostMemoryLock>> locks_;  // the locks of locked_for_device_
  std::vector<DeviceSlot> device_slots_;                // per chunk, placement none
  uint32_t kept_count_ = 0;
  uint64_t left_bytes_ = 0;
  uint64_t entered_bytes_ = 0;
  uint64_t streamed_bytes_ = 0;
};

}  // namespace terrace
