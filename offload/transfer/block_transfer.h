// BlockTransfer: one block on its way between a store and memory, for whoever starts it and comes back for it
// later. It must never be forgotten: what is started is finished, or settled when something else has failed.
#pragma once

#include <span>
#include <string_view>

#include <terrace/aio/engine.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// Used by the thread that owns the engine, which is the same until it has finished. Stays where it is
// meanwhile.
class BlockTransfer {
 public:
  BlockTransfer() = default;
  ~BlockTransfer();  // nothing is under way
  BlockTransfer(const BlockTransfer&) = delete;
  BlockTransfer& operator=(const BlockTransfer&) = delete;

  // From the start of `memory`, which stays until finish(); as long as the block.
  void start_read(BlockStore& store, ChunkId chunk, uint32_t block, std::span<std::byte> memory,
                  io::Engine& engine);
  // Filled by BlockStore::begin_write(), for start_write().
  BlockStore::Write& write() { return write_; }
  void start_write(BlockStore& store, io::Engine& engine);

  bool under_way() const { return store_ != nullptr; }
  ChunkId chunk() const { return write_.chunk; }
  uint32_t block() const { return write_.block; }
  // What was read, or written.
  std::span<std::byte> bytes() const { return {write_.request.data, write_.request.bytes}; }

  // Waits for it (`what` says for what to the watch) and throws its failure: Error(io), or Error(corrupt) for
  // bytes that are not those that were written. Nothing to do for one that is not under way.
  void finish(io::Engine& engine, StepWatch& watch, std::string_view what);
  // The same where another failure is on its way already.
  void settle(io::Engine& engine, StepWatch& watch) noexcept;

 private:
  static void on_done(void* context, const io::Completion& completion) noexcept;
  void submit(io::Engine& engine);

  BlockStore* store_ = nullptr;  // null: not under way
  BlockStore::Write write_{};    // of a read only chunk, block and request
  io::Completion completion_{};
  bool reads_ = false;
  bool done_ = true;
};

}  // namespace terrace
