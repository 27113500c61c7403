// ChunkTransfer: all blocks of a chunk on their way between memory and a store, with one event for all of
// them. Its owner decides when they move. It must never know what the bytes mean.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/base/event.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// The owner starts and waits for one transfer after the other; the threads of the engines complete them.
class ChunkTransfer {
 public:
  // OnBlock is called for each block as it ends, on the completing thread and before event() counts it. It
  // may replace the failure, which is null for a block that arrived.
  using OnBlock = void (*)(void* context, ChunkTransfer& transfer, const io::Completion& completion,
                           std::exception_ptr& failure) noexcept;
  // TakeSlot takes a slot of the store for a block to be written. It works as BlockStore::begin_write(), but
  // may wait, and throws where there is no slot.
  using TakeSlot =
      FunctionRef<void(uint32_t block, std::span<const std::byte> source, BlockStore::Write& write)>;

  ChunkTransfer() = default;
  ~ChunkTransfer() { done_.wait_done(); }
  ChunkTransfer(const ChunkTransfer&) = delete;
  ChunkTransfer& operator=(const ChunkTransfer&) = delete;

  // Prepares for chunks of at most `most_blocks` blocks; call it once, before the first transfer.
  void prepare(uint64_t most_blocks);
  // Sets `on_block`; call it once, before the first transfer.
  void tell(OnBlock on_block, void* context);

  // `memory` has room for the chunk and stays until event() is done.
  void start_read(BlockStore& store, ChunkId chunk, std::byte* memory, const TransferPort& port,
                  const TransferName& name);
  // Begins the first half of start_read(): event() is not done any more. Nothing moves before submit_read(),
  // which any one thread may call, or fail_read() in its place.
  void expect_read(BlockStore& store, ChunkId chunk, std::byte* memory, const TransferName& name);
  void submit_read(const TransferPort& port, BlockTransfer::Check check = BlockTransfer::Check::at_once);
  void fail_read(const std::exception_ptr& failure);

  // Writes to a store that is written in place. `written`, if it is not null, becomes true when all of the
  // chunk is in the store, before event() is done.
  void start_write(BlockStore& store, ChunkId chunk, const std::byte* memory, const TransferPort& port,
                   const TransferName& name, std::atomic<bool>* written);
  // Writes to the slots of `take_slot`. An exception of `take_slot` is the failure of all blocks that have
  // not started.
  void start_write(BlockStore& store, ChunkId chunk, const std::byte* memory, const TransferPort& port,
                   const TransferName& name, TakeSlot take_slot);

  ChunkId chunk() const { return chunk_; }
  // The event of the last transfer. Its failure is that of the first block that failed.
  const Event& event() const { return done_; }
  // The subject of a wait for the transfer: its first block that is under way.
  WaitSubject subject() const;
  // Waits for the transfer, watched, and throws its failure.
  void wait(StepWatch& watch) const;
  // Waits for the transfer, watched; its failure is left to event().
  void wait_done(StepWatch& watch) const noexcept;

 private:
  static void on_end(void* context, BlockTransfer& ended, const io::Completion& completion,
                     std::exception_ptr failure) noexcept;
  void begin(BlockStore& store, ChunkId chunk, const TransferName& name, bool reads);
  void write_blocks(const std::byte* memory, const TransferPort& port, TakeSlot take_slot);
  void block_ended(const io::Completion& completion, std::exception_ptr failure) noexcept;

  std::unique_ptr<BlockTransfer[]> blocks_;
  uint64_t most_blocks_ = 0;
  OnBlock on_block_ = nullptr;
  void* context_ = nullptr;
  BlockStore* store_ = nullptr;
  ChunkId chunk_{};
  uint32_t count_ = 0;  // blocks of the chunk
  std::byte* memory_ = nullptr;
  TransferPort port_;
  TransferName name_;
  bool reads_ = false;
  Event done_;
  std::atomic<bool>* written_ = nullptr;
  std::atomic<uint32_t> left_{0};  // blocks of a write that are not over
  std::atomic<bool> failed_{false};
};

// Returns the failure, replaced by reword()'s where it is an Error; null stays null.
std::exception_ptr reworded(const std::exception_ptr& failure, FunctionRef<Error(const Error&)> reword);

}  // namespace terrace
