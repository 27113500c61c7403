#include <terrace/offload/transfer/chunk_transfer.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

void ChunkTransfer::prepare(uint64_t most_blocks) {
  blocks_ = std::make_unique<BlockTransfer[]>(most_blocks);
  most_blocks_ = most_blocks;
  for (uint64_t b = 0; b < most_blocks; ++b) blocks_[b].tell(&ChunkTransfer::on_end, this);
}

void ChunkTransfer::tell(OnBlock on_block, void* context) {
  on_block_ = on_block;
  context_ = context;
}

void ChunkTransfer::begin(BlockStore& store, ChunkId chunk, const TransferName& name, bool reads) {
  store_ = &store;
  chunk_ = chunk;
  name_ = name;
  reads_ = reads;
  count_ = store.block_count(chunk);
  TERRACE_ASSERT(count_ <= most_blocks_, "a chunk has more blocks than were prepared");
  written_ = nullptr;
  failed_.store(false, std::memory_order_relaxed);
  left_.store(count_, std::memory_order_relaxed);
  done_.begin(std::max(count_, 1u));
  if (count_ == 0) done_.complete_one();  // all of it is other ranks'
}

void ChunkTransfer::start_read(BlockStore& store, ChunkId chunk, std::byte* memory, const TransferPort& port,
                               const TransferName& name) {
  expect_read(store, chunk, memory, name);
  submit_read(port);
}

void ChunkTransfer::expect_read(BlockStore& store, ChunkId chunk, std::byte* memory,
                                const TransferName& name) {
  begin(store, chunk, name, true);
  memory_ = memory;
}

void ChunkTransfer::submit_read(const TransferPort& port, BlockTransfer::Check check) {
  port_ = port;
  std::byte* destination = memory_;
  // The count is copied: once the last block is submitted, the owner may start the next transfer.
  const uint32_t count = count_;
  for (uint32_t b = 0; b < count; ++b) {
    const uint64_t bytes = store_->block_bytes(chunk_, b);
    blocks_[b].start_read(*store_, chunk_, b, {destination, bytes}, port, name_, check);
    destination += bytes;
  }
}

void ChunkTransfer::fail_read(const std::exception_ptr& failure) {
  for (uint32_t left = count_; left > 0; --left) block_ended({}, failure);
}

void ChunkTransfer::start_write(BlockStore& store, ChunkId chunk, const std::byte* memory,
                                const TransferPort& port, const TransferName& name,
                                std::atomic<bool>* written) {
  begin(store, chunk, name, false);
  written_ = written;
  write_blocks(memory, port,
               [&](uint32_t block, std::span<const std::byte> source, BlockStore::Write& write) {
                 const bool begun = store.begin_write(chunk, block, source, write);
                 TERRACE_ASSERT(begun, "a block that is written in place has a slot");
               });
}

void ChunkTransfer::start_write(BlockStore& store, ChunkId chunk, const std::byte* memory,
                                const TransferPort& port, const TransferName& name, TakeSlot take_slot) {
  begin(store, chunk, name, false);
  write_blocks(memory, port, take_slot);
}

void ChunkTransfer::write_blocks(const std::byte* memory, const TransferPort& port, TakeSlot take_slot) {
  port_ = port;
  // The count is copied: once the last block is submitted, the owner may start the next transfer.
  const uint32_t count = count_;
  for (uint32_t b = 0; b < count; ++b) {
    const uint64_t bytes = store_->block_bytes(chunk_, b);
    try {
      take_slot(b, {memory, bytes}, blocks_[b].write());
    } catch (...) {
      for (; b < count; ++b) block_ended({}, std::current_exception());
      return;
    }
    blocks_[b].start_write(*store_, port, name_);
    memory += bytes;
  }
}

void ChunkTransfer::on_end(void* context, BlockTransfer&, const io::Completion& completion,
                           std::exception_ptr failure) noexcept {
  static_cast<ChunkTransfer*>(context)->block_ended(completion, std::move(failure));
}

// After the last block ends, the transfer may be another chunk's.
void ChunkTransfer::block_ended(const io::Completion& completion, std::exception_ptr failure) noexcept {
  if (on_block_ != nullptr) on_block_(context_, *this, completion, failure);
  if (!reads_) {
    if (failure != nullptr) failed_.store(true, std::memory_order_relaxed);
    const bool is_last = left_.fetch_sub(1, std::memory_order_acq_rel) == 1;
    if (is_last && written_ != nullptr && !failed_.load(std::memory_order_relaxed))
      written_->store(true, std::memory_order_release);
  }
  done_.complete_one(std::move(failure));
}

WaitSubject ChunkTransfer::subject() const {
  const io::Request* request = nullptr;
  for (uint32_t b = 0; b < count_ && request == nullptr; ++b) {
    if (blocks_[b].under_way()) request = &blocks_[b].request();
  }
  return subject_of(name_, reads_, chunk_, *store_, request);
}

void ChunkTransfer::wait_done(StepWatch& watch) const noexcept {
  io::Engine* const engine = port_.engine();
  while (engine != nullptr && !done_.done() && engine->in_flight() > 0)
    wait_watched(*engine, watch, subject());
  if (!done_.done()) wait_done_watched(done_, watch, subject());
}

std::exception_ptr reworded(const std::exception_ptr& failure, FunctionRef<Error(const Error&)> reword) {
  if (failure == nullptr) return nullptr;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return std::make_exception_ptr(reword(error));
  } catch (...) {
    return failure;
  }
}

void ChunkTransfer::wait(StepWatch& watch) const {
  wait_done(watch);
  done_.wait();
}

}  // namespace terrace
