// GradientsOnNvme: the gradients that the host budget has no room for. They lie on nvme between their landing
// and the update, in the precision in which they are held, each block with its checksum. They leave through
// landing slots, which the thread of `io` empties while backward goes on, and come back through staging
// slots. No commit contains them: their files are removed at the end of the run.
//
// A landing slot is empty, filling (a gradient is added up in it; the sum of earlier micro-batches is read
// back first) or leaving (its blocks are being written). Slots are taken in turn, so nothing depends on which
// write ends first. Where all micro-batches of a step are open together (OffloadOptions::layer_major), a
// gradient stays in its slot from one micro-batch to the next, until the slot is needed. A zero gradient is
// remembered as such and moves no bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/io_thread.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/gradients/gradient_place.h>
#include <terrace/offload/landing/gradient_arithmetic.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/transfer/chunk_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// SpillTier: the blocks of the chunks whose gradients are on nvme, and the thread through which they leave.
// Both are null where there are none.
struct SpillTier {
  BlockStore* store = nullptr;
  io::IoThread* io = nullptr;
};

class GradientsOnNvme final : public GradientPlace {
 public:
  // `tier` has both. All references outlive this.
  GradientsOnNvme(const RunContext& run, HostArena& arena, const SpillTier& tier,
                  GradientArithmetic& arithmetic, const AccumulationRules& rules);
  GradientsOnNvme(const GradientsOnNvme&) = delete;
  GradientsOnNvme& operator=(const GradientsOnNvme&) = delete;

  // --- On the way out; the step thread ---
  bool has(ChunkId chunk) const override { return store_.block_count(chunk) > 0; }
  void make_room(const GradientLanding& landing, Finish finish) override;
  std::byte* place_of_whole(ChunkId chunk) override { return rules_.accumulates ? nullptr : filled(chunk); }
  bool can_add(ChunkId chunk) const override { return slot_of(chunk).transfer.event().done(); }
  void add(const GradientLanding& own, const std::byte* gradient, bool is_last) override;
  void add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish finish) override;
  bool take(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now,
            Finish finish) override;
  // Waits until everything has left where it ends the step; throws the first failure.
  void finish(bool ends_step) override;
  // True if the chunk's last landing has been written, or the gradient is zero.
  bool is_complete(ChunkId chunk) const override {
    return written_[index_of(chunk)].load(std::memory_order_acquire);
  }
  // The chunk's landing slot, with the sum of the earlier landings, for which it waits.
  std::byte* filled(ChunkId chunk);
  // Starts writing the slot's contents to nvme, when the earlier sum is there.
  void write(ChunkId chunk);
  // A staging slot, while no update and no landing goes on.
  std::byte* spare_slot(ChunkId) const override { return stagings_[0].memory; }

  // --- To the update; one thread at a time ---
  DataType type(ChunkId chunk) const override { return rules_.type_in(shards_.space().section_of(chunk)); }
  std::byte* gradient(ChunkId chunk) override;
  bool is_held(ChunkId) const override { return false; }
  // Starts reading the gradient into a staging slot. Returns false when the gradient is not written yet, or
  // no staging slot is free.
  bool start_open(ChunkId chunk, io::Engine& engine) override;
  bool is_open(ChunkId chunk) const override;
  void release(ChunkId chunk) override;
  void put_back(ChunkId chunk) override;
  std::optional<WaitSubject> opening_subject() const override;

  // Bytes of requested transfers, counted at the request: the same in every run.
  uint64_t landing_read_bytes() const override { return landing_read_bytes_.load(std::memory_order_relaxed); }
  uint64_t landing_write_bytes() const override {
    return landing_write_bytes_.load(std::memory_order_relaxed);
  }
  uint64_t opening_read_bytes() const override {
    return opening_read_bytes_;
  }  // for the thread of the update

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Slot {
    std::byte* memory = nullptr;
    uint32_t chunk = kNone;
    bool filling = false;    // of a landing slot: write() has not been called yet
    ChunkTransfer transfer;  // the chunk's transfer from nvme or to it
  };

  // Takes a slot for the gradient; waits until the slot's previous gradient is written. With `add` the
  // earlier sum is read back into the slot.
  void begin(ChunkId chunk, bool add);
  void sum_up(const GradientLanding& own, const std::byte* gradient, bool is_last);
  void read(Slot& slot, TransferReason reason, const TransferPort& port);
  TransferName name_of(ChunkId chunk, TransferReason reason) const;
  uint64_t bytes_of_chunk(ChunkId chunk) const { return store_.chunk_bytes(chunk); }
  // The landing slot that the chunk fills, or null.
  Slot* filling_slot(ChunkId chunk) const;
  Slot& slot_of(ChunkId chunk) const;

  const ChunkShards& shards_;
  BlockStore& store_;
  io::IoThread& io_;
  StepWatch& watch_;
  GradientArithmetic& arithmetic_;
  const AccumulationRules rules_;
  const bool dry_;                                // nothing is touched
  uint32_t slot_count_;                           // landing slots, and as many staging slots
  std::vector<uint8_t> zero_;                     // by chunk; bytes, because two threads have chunks in hand
  std::unique_ptr<std::atomic<bool>[]> written_;  // by chunk: complete in the store
  // The slots come after the members that their transfers write to, because their destructors wait for the
  // transfers.
  std::unique_ptr<Slot[]> landings_;
  std::unique_ptr<Slot[]> stagings_;
  uint32_t next_ = 0;  // index into landings_
  // Where ranks pull, a thread beside the one that asks adds, and counts.
  std::atomic<uint64_t> landing_read_bytes_{0};
  std::atomic<uint64_t> landing_write_bytes_{0};
  uint64_t opening_read_bytes_ = 0;
};

}  // namespace terrace
