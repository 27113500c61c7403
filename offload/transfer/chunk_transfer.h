// ChunkTransfer: all blocks of a chunk on their way between memory and a store that is written in place. Who
// owns it decides when, and hands the requests to an engine; what the bytes mean it must never know.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/error.h>
#include <terrace/base/event.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// Started and waited for by its owner, one transfer after the other; completed by the threads of the engines.
class ChunkTransfer {
 public:
  // Says in a failure of the store whose bytes they are.
  using NameFailure = Error (*)(const Error& failure, ChunkId chunk);
  using Submit = FunctionRef<void(const io::Request&)>;

  ChunkTransfer() = default;
  ~ChunkTransfer() { done_.wait_done(); }
  ChunkTransfer(const ChunkTransfer&) = delete;
  ChunkTransfer& operator=(const ChunkTransfer&) = delete;

  // Once, before the first. For chunks of at most so many blocks; `store` outlives this.
  void prepare(BlockStore& store, uint64_t most_blocks, NameFailure name_failure);

  // `memory` is the chunk's and stays until event() is done; `tag` goes with every request.
  void start_read(ChunkId chunk, std::byte* memory, uint64_t tag, Submit submit);
  // `written`, where it is not null, becomes true when all of the chunk is in the store, before event() is
  // done.
  void start_write(ChunkId chunk, const std::byte* memory, uint64_t tag, std::atomic<bool>* written,
                   Submit submit);

  // Of the last one. Its failure is that of the first block that failed.
  const Event& event() const { return done_; }
  // What a wait for it waits for; `what` as in WaitSubject.
  WaitSubject subject(std::string_view what) const;
  // Waits for it, watched, and throws its failure.
  void wait(StepWatch& watch, std::string_view what) const;

 private:
  struct Block {
    ChunkTransfer* owner = nullptr;
    uint32_t number = 0;
    io::Request request{};
    BlockStore::Write write{};
  };
  static void on_read(void* context, const io::Completion& completion) noexcept;
  static void on_written(void* context, const io::Completion& completion) noexcept;
  std::span<Block> begin(ChunkId chunk);

  BlockStore* store_ = nullptr;
  NameFailure name_failure_ = nullptr;
  std::vector<Block> blocks_;
  ChunkId chunk_{};
  Event done_;
  std::atomic<bool>* written_ = nullptr;
  std::atomic<uint32_t> left_{0};  // blocks of a write that are not over
  std::atomic<bool> failed_{false};
};

}  // namespace terrace
