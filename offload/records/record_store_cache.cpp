// The part of RecordStore that moves records into and out of host memory when the host budget changes.
#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/offload/plan/host_slots.h>
#include <terrace/offload/records/record_store.h>

namespace terrace {
namespace {

// The most blocks of a chunk that are in flight at once.
constexpr size_t kTransfers = 8;

}  // namespace

std::vector<ChunkId> RecordStore::trainable_chunks(bool kept) const {
  std::vector<ChunkId> chunks;
  for (uint32_t c = 0; c < shards_.space().chunk_count(); ++c) {
    if (shards_.space().section_of(ChunkId{c}).trainable && (memory_[c] != nullptr) == kept)
      chunks.push_back(ChunkId{c});
  }
  return chunks;
}

void RecordStore::lock_for_device(const std::vector<bool>& chunks) {
  TERRACE_ASSERT(placement_ != Placement::none, "what is on the device is in no host slot");
  locked_for_device_ = chunks;
  for (const ChunkId chunk : trainable_chunks(true)) lock(chunk);
}

void RecordStore::lock(ChunkId chunk) {
  if (locked_for_device_[index_of(chunk)])
    locks_[index_of(chunk)] = device_.lock_host_memory({resident(chunk), slot_bytes_});
}

// Chunks that leave or enter are spread evenly, so that the resident ones still fill the pauses of the drive.
void RecordStore::keep(uint32_t count, bool knows_cached) {
  TERRACE_ASSERT(placement_ == Placement::nvme, "only states on nvme are kept in host memory in part");
  const std::vector<ChunkId> kept = trainable_chunks(true);
  const std::vector<ChunkId> streamed = trainable_chunks(false);
  const auto kept_count = static_cast<uint32_t>(kept.size());
  TERRACE_ASSERT(count <= kept_count + free_slots_.size(), "no more is kept than was planned");
  if (count < kept_count) {
    for (uint32_t k = 0; k < kept_count; ++k) {
      if (!is_kept(k, count, kept_count)) leave(kept[k], knows_cached);
    }
  } else {
    for (uint32_t s = 0; s < streamed.size(); ++s) {
      if (is_kept(s, count - kept_count, static_cast<uint32_t>(streamed.size())))
        enter(streamed[s], knows_cached);
    }
  }
}

void RecordStore::leave(ChunkId chunk, bool knows_cached) {
  const uint32_t c = index_of(chunk);
  const bool newer = is_newer_[c] && (!knows_cached || committer_->is_newer(CommitPart::records, chunk));
  if (newer) write_back(chunk);
  if (knows_cached) committer_->forget_cached(CommitPart::records, chunk);
  is_newer_[c] = false;
  locks_[c].reset();
  arena_.release({memory_[c], slot_bytes_});
  free_slots_.push_back(memory_[c]);
  memory_[c] = nullptr;
  --kept_count_;
  streamed_bytes_ += record_bytes(chunk);
}

void RecordStore::enter(ChunkId chunk, bool knows_cached) {
  std::byte* const memory = free_slots_.back();
  arena_.restore({memory, slot_bytes_});
  try {
    read_in(chunk, memory);
  } catch (...) {
    arena_.release({memory, slot_bytes_});
    throw;
  }
  free_slots_.pop_back();
  memory_[index_of(chunk)] = memory;
  lock(chunk);
  if (knows_cached) committer_->add_cached(CommitPart::records, chunk, memory, false);
  ++kept_count_;
  streamed_bytes_ -= record_bytes(chunk);
}

void RecordStore::write_back(ChunkId chunk) {
  std::array<BlockTransfer, kTransfers> writes;
  try {
    for (uint32_t block = 0; block < store_->block_count(chunk); ++block) {
      BlockTransfer& write = writes[block % kTransfers];
      write.finish(watch_);
      start_block_write(
          chunk, block,
          {memory_[index_of(chunk)] + block * block_tiles_ * tile_bytes_, store_->block_bytes(chunk, block)},
          write);
    }
    for (BlockTransfer& write : writes) write.finish(watch_);
  } catch (...) {
    for (BlockTransfer& write : writes) write.settle(watch_);
    throw;
  }
  left_bytes_ += record_bytes(chunk);
}

void RecordStore::read_in(ChunkId chunk, std::byte* memory) {
  std::array<BlockTransfer, kTransfers> reads;
  const uint32_t count = store_->block_count(chunk);
  uint32_t started = 0;
  try {
    for (uint32_t block = 0; block < count; ++block) {
      for (; started < std::min<uint64_t>(count, block + kTransfers); ++started) {
        reads[started % kTransfers].start_read(
            *store_, chunk, started,
            {memory + started * block_tiles_ * tile_bytes_, store_->block_bytes(chunk, started)},
            TransferPort(*engine_), {.what = "optimizer states"});
      }
      reads[block % kTransfers].finish(watch_);
    }
  } catch (...) {
    for (BlockTransfer& read : reads) read.settle(watch_);
    throw;
  }
  entered_bytes_ += record_bytes(chunk);
}

}  // namespace terrace
