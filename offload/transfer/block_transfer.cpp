#include <terrace/offload/transfer/block_transfer.h>

#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

void TransferPort::submit(io::Request& request) const {
  if (thread_ != nullptr) return thread_->submit(request, priority_);
  request.priority = priority_;
  engine_->submit({&request, 1});
}

WaitSubject subject_of(const TransferName& name, bool reads, ChunkId chunk, const BlockStore& store,
                       const io::Request* request) {
  const std::string_view link = reads ? "nvme -> host" : "host -> nvme";
  return {name.what,
          name.link.empty() ? link : name.link,
          reads ? TimeCause::read : TimeCause::write,
          chunk,
          request,
          request != nullptr ? std::string_view(store.path_of(*request)) : std::string_view()};
}

BlockTransfer::~BlockTransfer() {
  TERRACE_ASSERT(!under_way(), "a block is still on its way");
}

void BlockTransfer::tell(OnEnd on_end, void* context) {
  on_end_ = on_end;
  context_ = context;
}

void BlockTransfer::start_read(BlockStore& store, ChunkId chunk, uint32_t block, std::span<std::byte> memory,
                               const TransferPort& port, const TransferName& name, Check check) {
  write_ = {};
  write_.chunk = chunk;
  write_.block = block;
  write_.request = store.read_request(chunk, block, memory.first(store.block_bytes(chunk, block)));
  snapshot_ = nullptr;
  check_ = check;
  start(store, port, name, true);
}

void BlockTransfer::start_read(BlockStore& store, const BlockStore::Snapshot& snapshot, ChunkId chunk,
                               uint32_t block, std::span<std::byte> memory, const TransferPort& port,
                               const TransferName& name) {
  write_ = {};
  write_.chunk = chunk;
  write_.block = block;
  write_.request = store.read_request(snapshot, chunk, block, memory.first(store.block_bytes(chunk, block)));
  snapshot_ = &snapshot;
  check_ = Check::at_once;
  start(store, port, name, true);
}

void BlockTransfer::start_write(BlockStore& store, const TransferPort& port, const TransferName& name) {
  start(store, port, name, false);
}

void BlockTransfer::start(BlockStore& store, const TransferPort& port, const TransferName& name, bool reads) {
  TERRACE_ASSERT(!under_way() && failure_ == nullptr, "the transfer before this one is not finished");
  store_ = &store;
  port_ = port;
  name_ = name;
  reads_ = reads;
  write_.request.context = this;
  write_.request.on_complete = &BlockTransfer::on_complete;
  write_.request.tag = name.tag;
  under_way_.store(true, std::memory_order_release);
  port_.submit(write_.request);
}

void BlockTransfer::on_complete(void* context, const io::Completion& completion) noexcept {
  BlockTransfer& ended = *static_cast<BlockTransfer*>(context);
  std::exception_ptr failure;
  if (ended.reads_) {
    try {
      ended.end_read(completion);
    } catch (...) {
      failure = std::current_exception();
    }
  } else {
    const BlockStore::WriteEnd end = ended.store_->end_write(ended.write_, completion);
    if (end == BlockStore::WriteEnd::again) return ended.port_.submit(ended.write_.request);
    if (end == BlockStore::WriteEnd::failed)
      failure = std::make_exception_ptr(ended.store_->io_error(ended.write_.request, completion));
  }
  if (ended.on_end_ == nullptr) ended.failure_ = std::move(failure);
  ended.under_way_.store(false, std::memory_order_release);
  // The function that is told may end the life of the transfer, so nothing of it is used afterwards.
  if (ended.on_end_ != nullptr) ended.on_end_(ended.context_, ended, completion, std::move(failure));
}

void BlockTransfer::end_read(const io::Completion& completion) {
  if (snapshot_ != nullptr)
    return store_->end_read(*snapshot_, write_.chunk, write_.block, write_.request, completion);
  if (check_ == Check::later) return store_->end_transfer(write_.request, completion);
  store_->end_read(write_.chunk, write_.block, write_.request, completion);
}

void BlockTransfer::finish(StepWatch& watch) {
  while (under_way()) wait_watched(*port_.engine(), watch, subject());
  finish();
}

void BlockTransfer::finish() {
  while (under_way()) port_.engine()->wait(1);
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void BlockTransfer::settle(StepWatch& watch) noexcept {
  try {
    finish(watch);
  } catch (const Error&) {
    // The first failure is the one that matters.
  }
}

}  // namespace terrace
