// BlockTransfer: one block on its way between a store and memory. Every block of a tier moves through it. It
// makes the request, checks the bytes read, submits a write again if the store redirects it to another slot,
// and knows the name of a wait for it. It must never decide when a block moves.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>

#include <terrace/aio/engine.h>
#include <terrace/aio/io_thread.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// TransferPort: the destination of requests, which is an engine of the calling thread or an IoThread.
class TransferPort {
 public:
  TransferPort() = default;
  explicit TransferPort(io::Engine& engine, io::Priority priority = io::Priority::critical)
      : engine_(&engine), priority_(priority) {}
  TransferPort(io::IoThread& thread, io::Priority priority) : thread_(&thread), priority_(priority) {}

  void submit(io::Request& request) const;
  // The engine that the waiting thread has to poll; null where an IoThread polls.
  io::Engine* engine() const { return engine_; }

 private:
  io::Engine* engine_ = nullptr;
  io::IoThread* thread_ = nullptr;
  io::Priority priority_ = io::Priority::critical;
};

// TransferName: the name of a transfer, for waits and for recorded steps.
struct TransferName {
  std::string_view what;       // "parameters"; outlives the transfer
  uint64_t tag = 0;            // transfer_tag()
  std::string_view link = {};  // empty: "nvme -> host" or "host -> nvme"
};

// The subject of a wait for a transfer of that name. `request` is null, or a request to `store` that is not
// over.
WaitSubject subject_of(const TransferName& name, bool reads, ChunkId chunk, const BlockStore& store,
                       const io::Request* request);

// A BlockTransfer serves one transfer after the other, each started and waited for by one thread. The object
// must not move while a transfer is under way.
class BlockTransfer {
 public:
  // OnEnd is called when a transfer is over, on the thread that completes it. It may start the next one.
  using OnEnd = void (*)(void* context, BlockTransfer& ended, const io::Completion& completion,
                         std::exception_ptr failure) noexcept;
  // Check: whether bytes are compared with their checksum as soon as they are read, or by verify().
  enum class Check : uint8_t { at_once, later };

  BlockTransfer() = default;
  ~BlockTransfer();  // no transfer may be under way
  BlockTransfer(const BlockTransfer&) = delete;
  BlockTransfer& operator=(const BlockTransfer&) = delete;

  // Sets `on_end`, which then receives failures; finish() throws nothing.
  void tell(OnEnd on_end, void* context);

  // Reads the block to the start of `memory`.
  void start_read(BlockStore& store, ChunkId chunk, uint32_t block, std::span<std::byte> memory,
                  const TransferPort& port, const TransferName& name, Check check = Check::at_once);
  // Reads the block as it was at the snapshot, which outlives the transfer.
  void start_read(BlockStore& store, const BlockStore::Snapshot& snapshot, ChunkId chunk, uint32_t block,
                  std::span<std::byte> memory, const TransferPort& port, const TransferName& name);
  // Compares bytes that were read with Check::later with their checksum. Throws Error(corrupt).
  void verify() const { store_->verify(write_.chunk, write_.block, write_.request); }
  // The write for start_write(), which BlockStore::begin_write() fills.
  BlockStore::Write& write() { return write_; }
  const BlockStore::Write& write() const { return write_; }
  void start_write(BlockStore& store, const TransferPort& port, const TransferName& name);

  bool under_way() const { return under_way_.load(std::memory_order_acquire); }
  ChunkId chunk() const { return write_.chunk; }
  uint32_t block() const { return write_.block; }
  const io::Request& request() const { return write_.request; }
  // The memory that was read into, or written from.
  std::span<std::byte> bytes() const { return {write_.request.data, write_.request.bytes}; }

  // Waits for the transfer and throws its failure: Error(io), or Error(corrupt) for bytes that differ from
  // those written. Does nothing if no transfer was started since the last call. Only for transfers through an
  // engine of this thread.
  void finish(StepWatch& watch);
  void finish();  // for a thread that nobody watches
  // Waits for the transfer and drops its failure, because another failure is being reported already.
  void settle(StepWatch& watch) noexcept;
  WaitSubject subject() const { return subject_of(name_, reads_, write_.chunk, *store_, &write_.request); }

 private:
  static void on_complete(void* context, const io::Completion& completion) noexcept;
  void start(BlockStore& store, const TransferPort& port, const TransferName& name, bool reads);
  void end_read(const io::Completion& completion);

  BlockStore* store_ = nullptr;
  const BlockStore::Snapshot* snapshot_ = nullptr;
  BlockStore::Write write_{};  // for a read only chunk, block and request are set
  TransferPort port_;
  TransferName name_;
  OnEnd on_end_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr failure_;
  std::atomic<bool> under_way_{false};
  bool reads_ = false;
  Check check_ = Check::at_once;
};

}  // namespace terrace
