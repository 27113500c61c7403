// ChunkTransfer: all blocks of a chunk on their way between memory and a store, with one event for all of
// them. Who owns it decides when; what the bytes mean it must never know.
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

// Started and waited for by its owner, one transfer after the other; completed by the threads of the engines.
class ChunkTransfer {
 public:
  // Called for each block as it ends, on the completing thread and before event() counts it. May put other
  // words into the failure, which is null for a block that arrived.
  using OnBlock = void (*)(void* context, ChunkTransfer& transfer, const io::Completion& completion,
                           std::exception_ptr& failure) noexcept;
  // Takes a slot of the store for a block that is to be written; as BlockStore::begin_write(), but may wait,
  // and throws where there is none.
  using TakeSlot =
      FunctionRef<void(uint32_t block, std::span<const std::byte> source, BlockStore::Write& write)>;

  ChunkTransfer() = default;
  ~ChunkTransfer() { done_.wait_done(); }
  ChunkTransfer(const ChunkTransfer&) = delete;
  ChunkTransfer& operator=(const ChunkTransfer&) = delete;

  // Once, before the first transfer: there are chunks of at most so many blocks.
  void prepare(uint64_t most_blocks);
  // Once, before the first transfer.
  void tell(OnBlock on_block, void* context);

  // `memory` is the chunk's and stays until event() is done.
  void start_read(BlockStore& store, ChunkId chunk, std::byte* memory, const TransferPort& port,
                  const TransferName& name);
  // The first half of start_read(): event() is not done any more. Nothing moves before submit_read(), which
  // any one thread may call, or fail_read() in its place.
  void expect_read(BlockStore& store, ChunkId chunk, std::byte* memory, const TransferName& name);
  void submit_read(const TransferPort& port, BlockTransfer::Check check = BlockTransfer::Check::at_once);
  void fail_read(const std::exception_ptr& failure);

  // To a store that is written in place. `written`, where it is not null, becomes true when all of the chunk
  // is in the store, before event() is done.
  void start_write(BlockStore& store, ChunkId chunk, const std::byte* memory, const TransferPort& port,
                   const TransferName& name, std::atomic<bool>* written);
  // To slots that `take_slot` finds. What that throws is the failure of the blocks which have not started.
  void start_write(BlockStore& store, ChunkId chunk, const std::byte* memory, const TransferPort& port,
                   const TransferName& name, TakeSlot take_slot);

  ChunkId chunk() const { return chunk_; }
  // Of the last transfer. Its failure is that of the first block that failed.
  const Event& event() const { return done_; }
  // What a wait for it waits for: its oldest block that is under way.
  WaitSubject subject() const;
  // Waits for it, watched, and throws its failure.
  void wait(StepWatch& watch) const;
  // Waits for it, watched; its failure is left to event().
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
  uint32_t count_ = 0;  // of its blocks
  std::byte* memory_ = nullptr;
  TransferPort port_;
  TransferName name_;
  bool reads_ = false;
  Event done_;
  std::atomic<bool>* written_ = nullptr;
  std::atomic<uint32_t> left_{0};  // blocks of a write that are not over
  std::atomic<bool> failed_{false};
};

// The failure, put into other words by `reword` where it is an Error; null stays null.
std::exception_ptr reworded(const std::exception_ptr& failure, FunctionRef<Error(const Error&)> reword);

}  // namespace terrace
