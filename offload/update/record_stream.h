// RecordStream: moves the records of chunks block by block through the ring. Blocks are read ahead as far as
// the ring has room, handed out as they arrive, and written back from the same memory. It computes nothing;
// the taker of a block gives it back by write().
//
// One thread at a time uses it and owns the engine between begin() and end().
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
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/records/record_store.h>
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
    std::span<std::byte> slot;  // a slot of the ring
    ChunkId chunk{};
    uint64_t first_tile = 0;  // of the own ones
    uint64_t tile_count = 0;
    uint64_t number = 0;  // counts the reads of this update
    Phase phase = Phase::idle;
    BlockTransfer transfer;
  };
  struct Totals {
    uint64_t read_bytes = 0;
    uint64_t write_bytes = 0;
    uint64_t check_ns = 0;  // checksums of blocks read and of blocks to write
  };

  // The ring's slots hold a block each. `events` is null where nothing is recorded.
  RecordStream(const ChunkShards& shards, RecordStore& records, io::RingBuffer& ring, const MemoryPlan& plan,
               UpdateProgress& progress, StepEvents* events);

  // `engine` is null when nothing streams. With `chunk_by_chunk` all blocks of a chunk are read before any of
  // the next one; without, the order keeps every path busy.
  void begin(io::Engine* engine, bool chunk_by_chunk);
  // The chunk's blocks may be read from now on.
  void add(ChunkId chunk) { order_.add(chunk); }
  // Starts as many reads as the ring allows. At most half of the ring is being read
  // at once, so that reads go on while other blocks are computed and written: with the whole ring being read,
  // the drive would be idle after the reads, and then only write.
  void start_reads();
  // True if the read of every added block has been started.
  bool all_started() const { return order_.empty(); }
  // True if another read could be started now.
  bool can_start() const { return !order_.empty() && ring_.free_count() > 0; }
  // True if any block is being read.
  bool is_reading() const;

  // The earliest arrived block whose chunk `may_take` accepts, verified; or null.
  Block* take_ready(FunctionRef<bool(ChunkId)> may_take);
  // Writes the block's changed tiles back. Returns false if there is no slot for them until a transfer in
  // flight ends.
  bool write(Block& block);
  // Gives a block back that was not changed.
  void drop(Block& block);
  std::span<std::byte> tiles_of(const Block& block) const {
    return block.slot.first(block.tile_count * tile_bytes_);
  }

  // Ends the stream, of which nothing may be in flight; blocks left in the ring are dropped.
  void end();
  // The first failure of a transfer since begin(); null if none failed.
  std::exception_ptr failure() const { return failure_; }

  // The subject of a wait for the oldest read, else for any write; nothing if neither is under way.
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
  void note_ring() const;  // records a change of the ring's free slots
  uint32_t number_of(const Block& block) const {
    return static_cast<uint32_t>(block.first_tile / block_tiles_);
  }

  const ChunkShards& shards_;
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
  std::vector<Block*> ready_;  // blocks that were read, in the order of arrival
  uint64_t reads_started_ = 0;
  size_t reading_count_ = 0;
  std::exception_ptr failure_;
  Totals totals_;
};

}  // namespace terrace
