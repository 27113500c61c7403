#include <terrace/offload/transfer/block_transfer.h>

#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

BlockTransfer::~BlockTransfer() {
  TERRACE_ASSERT(done_, "a block is still on its way");
}

void BlockTransfer::start_read(BlockStore& store, ChunkId chunk, uint32_t block, std::span<std::byte> memory,
                               io::Engine& engine) {
  TERRACE_ASSERT(store_ == nullptr, "the transfer before this one is not finished");
  write_ = {};
  write_.chunk = chunk;
  write_.block = block;
  write_.request = store.read_request(chunk, block, memory.first(store.block_bytes(chunk, block)));
  store_ = &store;
  reads_ = true;
  submit(engine);
}

void BlockTransfer::start_write(BlockStore& store, io::Engine& engine) {
  TERRACE_ASSERT(store_ == nullptr, "the transfer before this one is not finished");
  store_ = &store;
  reads_ = false;
  submit(engine);
}

void BlockTransfer::submit(io::Engine& engine) {
  done_ = false;
  write_.request.context = this;
  write_.request.on_complete = &BlockTransfer::on_done;
  engine.submit({&write_.request, 1});
}

void BlockTransfer::on_done(void* context, const io::Completion& completion) noexcept {
  BlockTransfer& ended = *static_cast<BlockTransfer*>(context);
  ended.completion_ = completion;
  ended.done_ = true;
  if (!ended.reads_) ended.store_->arrived(ended.write_);
}

void BlockTransfer::finish(io::Engine& engine, StepWatch& watch, std::string_view what) {
  while (store_ != nullptr) {
    while (!done_) {
      wait_watched(
          engine, watch,
          {what, reads_ ? "nvme -> host" : "host -> nvme", reads_ ? TimeCause::read : TimeCause::write,
           write_.chunk, &write_.request, store_->path_of(write_.request)});
    }
    BlockStore& store = *std::exchange(store_, nullptr);
    if (reads_) return store.end_read(write_.chunk, write_.block, write_.request, completion_);
    const BlockStore::WriteEnd end = store.end_write(write_, completion_);
    if (end == BlockStore::WriteEnd::failed) throw store.io_error(write_.request, completion_);
    if (end == BlockStore::WriteEnd::again) start_write(store, engine);
  }
}

void BlockTransfer::settle(io::Engine& engine, StepWatch& watch) noexcept {
  try {
    finish(engine, watch, "what is under way");
  } catch (const Error&) {
    // What failed first is what matters.
  }
}

}  // namespace terrace
