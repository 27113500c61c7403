// The part of BlockStore that makes snapshots and reads their blocks.
#include <fmt/format.h>

#include <utility>

#include <terrace/base/assert.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/memory/tier/internal/block_store_file.h>
#include <terrace/memory/tier/internal/slot_map.h>

namespace terrace {

BlockStore::Snapshot::Snapshot(Snapshot&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), index_(other.index_) {}

BlockStore::Snapshot& BlockStore::Snapshot::operator=(Snapshot&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->drop(*this);
  store_ = std::exchange(other.store_, nullptr);
  index_ = other.index_;
  return *this;
}

BlockStore::Snapshot::~Snapshot() {
  if (store_ != nullptr) store_->drop(*this);
}

void BlockStore::Snapshot::adopt(const Write& write) {
  TERRACE_ASSERT(store_ != nullptr, "an empty snapshot takes nothing");
  const size_t index = store_->index_of_block(write.chunk, write.block);
  const MutexLock lock(store_->mutex_);
  TERRACE_ASSERT(store_->map_->current(index) == write.to,
                 fmt::format("block {} of chunk {} was not written like this, or again since", write.block,
                             index_of(write.chunk)));
  store_->map_->adopt(index_, index);
}

BlockStore::Snapshot BlockStore::snapshot() {
  TERRACE_ASSERT(!options_.in_place, "what is overwritten in place has no snapshots");
  const MutexLock lock(mutex_);
  return Snapshot(*this, map_->open_snapshot());
}

BlockStore::Snapshot BlockStore::take_retained(size_t position) {
  TERRACE_ASSERT(position < retained_.size() && retained_[position],
                 fmt::format("there is no retained commit {} to take", position));
  return std::move(retained_[position]);
}

void BlockStore::drop(Snapshot& snapshot) noexcept {
  const MutexLock lock(mutex_);
  map_->close_snapshot(snapshot.index_);
}

StoredBlock BlockStore::stored(const Snapshot& snapshot, ChunkId chunk, uint32_t block) const {
  TERRACE_ASSERT(snapshot.store_ == this, "a snapshot of another store");
  const size_t index = index_of_block(chunk, block);
  const MutexLock lock(mutex_);
  return map_->snapshot(snapshot.index_)[index];
}

bool BlockStore::written(const Snapshot& snapshot, ChunkId chunk, uint32_t block) const {
  return stored(snapshot, chunk, block).path != kNoPath;
}

io::Request BlockStore::read_request(const Snapshot& snapshot, ChunkId chunk, uint32_t block,
                                     std::span<std::byte> destination) {
  return make_read(stored(snapshot, chunk, block), chunk, block, destination);
}

void BlockStore::end_read(const Snapshot& snapshot, ChunkId chunk, uint32_t block, const io::Request& request,
                          const io::Completion& completion) {
  end_transfer(request, completion);
  compare(stored(snapshot, chunk, block), chunk, block, request);
}

BlockPlace BlockStore::place(const Snapshot& snapshot, ChunkId chunk, uint32_t block) const {
  const StoredBlock where = stored(snapshot, chunk, block);
  TERRACE_ASSERT(where.path != kNoPath, "a block that was never written has no place");
  return {files_[where.path]->file.fd(), where.slot * options_.block_bytes, block_bytes(chunk, block)};
}

StoreLayout BlockStore::layout_of(const Snapshot& snapshot) const {
  TERRACE_ASSERT(snapshot.store_ == this, "a snapshot of another store");
  StoreLayout layout{options_.name, options_.block_bytes, options_.chunk_bytes, {}, {}};
  for (const std::unique_ptr<File>& file : files_)
    layout.slot_counts.push_back(file != nullptr ? file->slot_count : 0);
  layout.blocks.resize(first_block_.back());  // before the lock, because it may take a while
  const MutexLock lock(mutex_);
  const std::span<const StoredBlock> blocks = map_->snapshot(snapshot.index_);
  std::copy(blocks.begin(), blocks.end(), layout.blocks.begin());
  return layout;
}

}  // namespace terrace
