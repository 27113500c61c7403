#include <terrace/offload/transfer/chunk_transfer.h>

#include <exception>
#include <span>

#include <terrace/base/assert.h>

namespace terrace {

void ChunkTransfer::prepare(BlockStore& store, uint64_t most_blocks, NameFailure name_failure) {
  store_ = &store;
  name_failure_ = name_failure;
  blocks_.resize(most_blocks);
  for (uint32_t b = 0; b < most_blocks; ++b) {
    blocks_[b].owner = this;
    blocks_[b].number = b;
  }
}

std::span<ChunkTransfer::Block> ChunkTransfer::begin(ChunkId chunk) {
  const uint32_t count = store_->block_count(chunk);
  chunk_ = chunk;
  failed_.store(false, std::memory_order_relaxed);
  left_.store(count, std::memory_order_relaxed);
  done_.begin(count);
  return std::span(blocks_).first(count);
}

void ChunkTransfer::start_read(ChunkId chunk, std::byte* memory, uint64_t tag, Submit submit) {
  for (Block& block : begin(chunk)) {
    const uint64_t bytes = store_->block_bytes(chunk, block.number);
    block.request = store_->read_request(chunk, block.number, {memory, bytes});
    block.request.on_complete = &ChunkTransfer::on_read;
    block.request.context = &block;
    block.request.tag = tag;
    memory += bytes;
    submit(block.request);
  }
}

void ChunkTransfer::start_write(ChunkId chunk, const std::byte* memory, uint64_t tag,
                                std::atomic<bool>* written, Submit submit) {
  written_ = written;
  for (Block& block : begin(chunk)) {
    const uint64_t bytes = store_->block_bytes(chunk, block.number);
    const bool begun = store_->begin_write(chunk, block.number, {memory, bytes}, block.write);
    TERRACE_ASSERT(begun, "a block that is written in place has a slot");
    block.request = block.write.request;
    block.request.on_complete = &ChunkTransfer::on_written;
    block.request.context = &block;
    block.request.tag = tag;
    memory += bytes;
    submit(block.request);
  }
}

void ChunkTransfer::on_read(void* context, const io::Completion& completion) noexcept {
  const Block& block = *static_cast<Block*>(context);
  ChunkTransfer& transfer = *block.owner;
  std::exception_ptr failure;
  try {
    transfer.store_->end_read(transfer.chunk_, block.number, block.request, completion);
  } catch (const Error& error) {
    failure = std::make_exception_ptr(transfer.name_failure_(error, transfer.chunk_));
  } catch (...) {
    failure = std::current_exception();
  }
  transfer.done_.complete_one(failure);
}

void ChunkTransfer::on_written(void* context, const io::Completion& completion) noexcept {
  Block& block = *static_cast<Block*>(context);
  ChunkTransfer& transfer = *block.owner;
  std::exception_ptr failure;
  if (transfer.store_->end_write(block.write, completion) !=
      BlockStore::WriteEnd::done) {  // in place: no other slot
    failure = std::make_exception_ptr(
        transfer.name_failure_(transfer.store_->io_error(block.request, completion), transfer.chunk_));
    transfer.failed_.store(true, std::memory_order_relaxed);
  }
  const bool is_last = transfer.left_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  if (is_last && transfer.written_ != nullptr && !transfer.failed_.load(std::memory_order_relaxed))
    transfer.written_->store(true, std::memory_order_release);
  transfer.done_.complete_one(failure);
}

WaitSubject ChunkTransfer::subject(std::string_view what) const {
  const io::Request& request = blocks_.front().request;
  const bool reads = request.kind == io::OpKind::read;
  return {what,
          reads ? "nvme -> host" : "host -> nvme",
          reads ? TimeCause::read : TimeCause::write,
          chunk_,
          &request,
          store_->path_of(request)};
}

void ChunkTransfer::wait(StepWatch& watch, std::string_view what) const {
  if (!done_.done()) wait_done_watched(done_, watch, subject(what));
  done_.wait();
}

}  // namespace terrace
