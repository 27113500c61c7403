// RecordStore: where the optimizer states of every trainable chunk live: device memory, host slots, or the
// tier file with some chunks kept in host slots. Which ones are kept changes with the host budget alone:
// records are all used once per step and all dirty, so a fixed set is the least traffic any policy reaches
// (least recently used would reach none of it). Used by one thread at a time: the step thread, or the one
// that runs an update for it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/commits/epoch_committer.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/offload/transfer/drive_turns.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class RecordStore {
 public:
  // `store` and `engine` are null unless states are on nvme.
  // Host slots are carved from `arena`; nobody else registers them, so that their pages can be given back.
  RecordStore(const FlatSpace& space, Placement placement, const MemoryPlan& plan, HostArena& arena,
              Device& device, BlockStore* store, io::Engine* engine, StepWatch& watch);

  Placement placement() const { return placement_; }
  bool is_streamed(ChunkId chunk) const;
  // The chunk's records where they are computed with: a host slot, or device memory (between open() and
  // close()).
  std::byte* resident(ChunkId chunk) const { return memory_[index_of(chunk)]; }
  void open(ChunkId chunk);
  void close(ChunkId chunk);

  // Whether resident records were changed since the tier file had them, as far as commits are not concerned.
  bool is_newer(ChunkId chunk) const { return is_newer_[index_of(chunk)]; }

  // From now on the device copies what is in host slots of `chunks`, whose pages it has locked for that while
  // they are there.
  void lock_for_device(const std::vector<bool>& chunks);

  // From now on commits read what is resident and share the store's slots; null: there are none.
  void commit_with(EpochCommitter* committer) { committer_ = committer; }
  // Whether resident records may be changed without waiting for a commit; if not, it writes them next.
  bool may_change(ChunkId chunk) { return committer_ == nullptr || committer_->may_change(chunk); }
  // They are about to be changed: waits until they may be.
  void before_change(ChunkId chunk);
  // As BlockStore::begin_write(), but waits for the commit in progress where that has the slots. False: only
  // writes of `engine` may still free one. Throws Error(capacity) when there are none.
  bool begin_write(ChunkId chunk, uint32_t block, std::span<const std::byte> source, BlockStore::Write& write,
                   const io::Engine& engine);

  // From now on the update reads blocks in turns with other processes; null: whenever it likes.
  void take_turns(DriveTurns* turns) { turns_ = turns; }
  uint64_t turn_wait_ns() const { return turns_ == nullptr ? 0 : turns_->wait_ns(); }
  bool may_read() { return turns_ == nullptr || turns_->may_read(); }
  // Where may_read() said no: waits until the next block may be read.
  void wait_for_turn();
  void give_back_turn() {
    if (turns_ != nullptr) turns_->give_back();
  }

  // Copies of one block of tiles, for initialisation and checkpoints.
  void read(ChunkId chunk, uint64_t first_tile, std::span<std::byte> tiles);
  // `write` and `tiles` stay until write.finish(). Where records are not streamed it is done when this
  // returns.
  void start_write(ChunkId chunk, uint64_t first_tile, std::span<const std::byte> tiles,
                   BlockTransfer& write);

  // --- The budget changes; between steps, states on nvme ---
  // How many chunks' records are in host slots.
  uint32_t kept_count() const { return kept_count_; }
  // From now on so many are, at most those of the plan. What leaves is written where the tier has not got it,
  // and its pages go back to the system; what enters is read. Nothing else moves. No commit is in progress;
  // `knows_cached`: the committer does. Throws Error(capacity) when the system has not got the pages, and
  // what a transfer failed with: the chunks before that one have changed places then.
  void keep(uint32_t count, bool knows_cached);
  // Of host slots whose pages the system has.
  uint64_t given_back_bytes() const { return free_slots_.size() * slot_bytes_; }
  uint64_t left_bytes() const { return left_bytes_; }  // written because they left
  uint64_t entered_bytes() const { return entered_bytes_; }

  BlockStore* store() const { return store_; }
  uint64_t streamed_bytes() const { return streamed_bytes_; }

 private:
  uint32_t block_at(uint64_t first_tile) const { return static_cast<uint32_t>(first_tile / block_tiles_); }
  uint64_t record_bytes(ChunkId chunk) const { return space_.chunk(chunk).tile_count() * tile_bytes_; }
  std::vector<ChunkId> trainable_chunks(bool kept) const;
  void lock(ChunkId chunk);
  void write_back(ChunkId chunk);
  void read_in(ChunkId chunk, std::byte* memory);
  void leave(ChunkId chunk, bool knows_cached);
  void enter(ChunkId chunk, bool knows_cached);
  void start_block_write(ChunkId chunk, uint32_t block, std::span<const std::byte> bytes,
                         BlockTransfer& write);

  const FlatSpace& space_;
  Placement placement_;
  Device& device_;
  BlockStore* store_;
  EpochCommitter* committer_ = nullptr;
  DriveTurns* turns_ = nullptr;
  io::Engine* engine_;
  StepWatch& watch_;
  HostArena& arena_;
  uint64_t slot_bytes_;  // of a chunk's records
  uint64_t tile_bytes_;
  uint64_t block_tiles_;                                // of the store's blocks
  std::vector<std::byte*> memory_;                      // per chunk; null: in the tier file, or frozen
  std::vector<bool> is_newer_;                          // per chunk in a host slot: than in the tier file
  std::vector<std::byte*> free_slots_;                  // of the host, whose pages the system has
  std::vector<bool> locked_for_device_;                 // per chunk: where it is in a host slot
  std::vector<std::unique_ptr<HostMemoryLock>> locks_;  // of these
  std::vector<DeviceSlot> device_slots_;                // per chunk, placement none
  uint32_t kept_count_ = 0;
  uint64_t left_bytes_ = 0;
  uint64_t entered_bytes_ = 0;
  uint64_t streamed_bytes_ = 0;
};

}  // namespace terrace
