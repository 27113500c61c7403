// RecordStream: the records of chunks, block by block through the ring: read ahead as far as it has room,
// handed out as they arrive, written back from the same memory. It computes nothing; whoever takes a block
// gives it back by write().
//
// Used by one thread at a time, which owns the engine between begin() and end().
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/ring_buffer.h>
#include <terrace/base/clock.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/homes/record_store.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/offload/update/read_order.h>
#include <terrace/offload/update/update_progress.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

class RecordStream {
 public:
  enum class Phase : uint8_t { idle, reading, ready, writing };
  struct Block {
    RecordStream* stream = nullptr;
    std::span<std::byte> slot;  // of the ring
    ChunkId chunk{};
    uint64_t first_tile = 0;
    uint64_t tile_count = 0;
    uint64_t number = 0;  // of its read in this update
    Phase phase = Phase::idle;
    BlockTransfer transfer;
  };
  struct Totals {
    uint64_t read_bytes = 0;
    uint64_t write_bytes = 0;
    uint64_t check_ns = 0;  // checksums of what was read and of what is written
  };

  // The ring's slots hold a block each. `events` is null where nothing is recorded.
  RecordStream(const FlatSpace& space, RecordStore& records, io::RingBuffer& ring, const MemoryPlan& plan,
               UpdateProgress& progress, StepEvents* events);

  // `engine` is null when nothing streams. Chunk by chunk: all blocks of a chunk are read before any of the
  // next one; else in the order that keeps every path busy.
  void begin(io::Engine* engine, bool chunk_by_chunk);
  // The chunk's blocks may be read from now on.
  void add(ChunkId chunk) { order_.add(chunk); }
  // Starts what the ring and the turns on the drive have room for; no more than half of the ring is being
  // read at once, so that reads go on while what was read is computed with and written: with all of it on its
  // way in the disk would have nothing to do, and then only writes, whenever it is done with them.
  void start_reads();
  // Every block that was added has been started.
  bool all_started() const { return order_.empty(); }
  // More could be started now.
  bool can_start() const { return !order_.empty() && ring_.free_count() > 0; }
  // The last block that was to be read might be; else the turn on the drive was over.
  bool has_turn() const { return has_turn_; }
  // Whether any block is on its way in.
  bool is_reading() const;

  // The block that arrived first of those whose chunk `may_take`, verified; or null.
  Block* take_ready(FunctionRef<bool(ChunkId)> may_take);
  // Its tiles were changed: they go back. False: there is no slot for them until something in flight ends.
  bool write(Block& block);
  std::span<std::byte> tiles_of(const Block& block) const {
    return block.slot.first(block.tile_count * tile_bytes_);
  }

  // Nothing of the stream is in flight any more: what is left in the ring is dropped.
  void end();
  // What went wrong with a transfer since begin().
  std::exception_ptr failure() const { return failure_; }

  // The oldest read, else any write; nothing where neither is under way.
  std::optional<WaitSubject> subject() const;
  const Totals& totals() const { return totals_; }

 private:
  static void on_end(void* context, BlockTransfer& ended, const io::Completion& completion,
                     std::exception_ptr failure) noexcept;
  void start_read(std::span<std::byte> slot);
  TransferName name_of(const Block& block) const;
  void was_read(Block& block);
  void was_written(Block& block);
  void note_failure(std::exception_ptr failure);
  void note_ring() const;  // whose slots have been taken, or given back
  uint32_t number_of(const Block& block) const {
    return static_cast<uint32_t>(block.first_tile / block_tiles_);
  }

  const FlatSpace& space_;
  RecordStore& records_;
  io::RingBuffer& ring_;
  UpdateProgress& progress_;
  StepEvents* const events_;
  const uint64_t tile_bytes_;
  const uint64_t block_tiles_;
  const SteadyClock clock_;
  io::Engine* engine_ = nullptr;
  ReadOrder order_;
  std::vector<Block> blocks_;  // one per ring slot
  std::vector<Block*> ready_;  // were read, in the order in which they arrived
  uint64_t reads_started_ = 0;
  size_t reading_count_ = 0;
  bool has_turn_ = true;
  std::exception_ptr failure_;
  Totals totals_;
};

}  // namespace terrace
