// SpilledGradients: the gradients that the host budget has no room for. They lie on nvme between their
// landing and the update, in the precision in which they are held, each block with its checksum. They leave
// through landing slots, which the thread of `io` empties while backward goes on, and come back through
// staging slots. No commit contains them: their files are removed at the end of the run.
//
// A landing slot is empty, filling (a gradient is on its way into it; the sum of earlier micro-batches is
// read back first) or leaving (its blocks are being written). Slots are taken in turn, so nothing depends on
// which write ends first. A zero gradient is remembered as such and moves no bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/io_thread.h>
#include <terrace/base/event.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/transfer/chunk_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class SpilledGradients {
 public:
  // `store` has the spilled chunks' blocks and outlives this.
  SpilledGradients(const FlatSpace& space, const MemoryPlan& plan, HostArena& arena, BlockStore& store,
                   StepWatch& watch);
  SpilledGradients(const SpilledGradients&) = delete;
  SpilledGradients& operator=(const SpilledGradients&) = delete;

  bool is_spilled(ChunkId chunk) const { return store_.block_count(chunk) > 0; }

  // Sets the thread that gradients leave through, before the first one leaves. `io` outlives this.
  void leave_through(io::IoThread& io) { io_ = &io; }

  // --- On the way out; the step thread ---
  // The chunk whose gradient is still filling the slot that begin() takes next, if any: call write() first.
  std::optional<ChunkId> filling_next() const;
  std::optional<ChunkId> filling() const;  // any filling chunk
  bool is_filling(ChunkId chunk) const;
  // Takes a slot for the chunk's gradient; waits until the slot's previous gradient is written. With `add`
  // the chunk's earlier sum is read back into the slot.
  void begin(ChunkId chunk, bool add);
  std::byte* landing(ChunkId chunk) const;
  // has_old() says whether the earlier sum has been read back; wait_old() waits for it.
  bool has_old(ChunkId chunk) const { return slot_of(chunk).transfer.event().done(); }
  void wait_old(ChunkId chunk);
  // Starts writing the slot's contents to nvme, when the earlier sum is there.
  void write(ChunkId chunk);
  // Notes that the chunk's gradient is zero so far.
  void set_zero(ChunkId chunk);
  // Waits until everything has left; throws the first failure.
  void finish_writes();
  // True if the chunk's last landing has been written, or the gradient is zero.
  bool is_written(ChunkId chunk) const { return written_[index_of(chunk)].load(std::memory_order_acquire); }

  // --- To the update; one thread at a time ---
  // Starts reading the chunk's gradient into a staging slot. Returns false when the gradient is not written
  // yet, or no staging slot is free.
  bool start_open(ChunkId chunk, io::Engine& engine);
  // True when the gradient has been read; throws the failure of the reads.
  bool is_open(ChunkId chunk) const;
  std::byte* opened(ChunkId chunk) const;
  void release(ChunkId chunk);
  // The subject of a wait for a gradient that is still being read; nothing if none is.
  std::optional<WaitSubject> opening_subject() const;
  // A staging slot, while no update and no landing goes on.
  std::byte* spare_slot() const { return stagings_[0].memory; }

  // Bytes of requested transfers, counted at the request: the same in every run.
  uint64_t landing_read_bytes() const { return landing_read_bytes_; }
  uint64_t landing_write_bytes() const { return landing_write_bytes_; }
  uint64_t opening_read_bytes() const { return opening_read_bytes_; }  // for the thread of the update

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Slot {
    std::byte* memory = nullptr;
    uint32_t chunk = kNone;
    bool filling = false;    // of a landing slot: write() has not been called yet
    ChunkTransfer transfer;  // the chunk's transfer from nvme or to it
  };

  void read(Slot& slot, TransferReason reason, const TransferPort& port);
  TransferName name_of(ChunkId chunk, TransferReason reason) const;
  uint64_t bytes_of_chunk(ChunkId chunk) const { return store_.chunk_bytes(chunk); }
  Slot& slot_of(ChunkId chunk) const;

  BlockStore& store_;
  io::IoThread* io_ = nullptr;
  StepWatch& watch_;
  const bool dry_;                                // nothing is touched
  uint32_t slot_count_;                           // landing slots, and as many staging slots
  std::vector<uint8_t> zero_;                     // by chunk; bytes, because two threads have chunks in hand
  std::unique_ptr<std::atomic<bool>[]> written_;  // by chunk: complete in the store
  // The slots come after the members that their transfers write to, because their destructors wait for the
  // transfers.
  std::unique_ptr<Slot[]> landings_;
  std::unique_ptr<Slot[]> stagings_;
  uint32_t next_ = 0;  // index into landings_
  uint64_t landing_read_bytes_ = 0;
  uint64_t landing_write_bytes_ = 0;
  uint64_t opening_read_bytes_ = 0;
};

}  // namespace terrace
