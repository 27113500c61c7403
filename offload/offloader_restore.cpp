// Parameters made of their masters again, where gradients have displaced them and no update followed: a step
// that was skipped or abandoned. Exact, since parameters are always the rounded masters. Streamed.
#include <algorithm>
#include <array>
#include <exception>

#include <terrace/offload/offloader_parts.h>

namespace terrace {
namespace {

constexpr uint32_t kMostReads = 8;  // at once

uint64_t parameter_tile_bytes(const FlatSpace& space, ChunkId chunk) {
  return kTileElements * bytes_of(space.section_of(chunk).type);
}

struct BlockRead {
  std::span<std::byte> memory;  // of the ring
  ChunkId chunk{};
  uint32_t block = 0;
  io::Request request{};
  io::Completion completion{};
  bool done = true;
};

// The blocks of the records of displaced chunks that are on nvme, in order.
class DisplacedBlocks {
 public:
  DisplacedBlocks(const FlatSpace& space, const GradientStore& gradients, const RecordStore& records)
      : space_(space), gradients_(gradients), records_(records) {
    settle();
  }
  bool empty() const { return chunk_ == space_.chunk_count(); }
  void take(BlockRead& read) {
    read.chunk = ChunkId{chunk_};
    read.block = block_++;
    if (block_ < records_.store()->block_count(read.chunk)) return;
    block_ = 0;
    ++chunk_;
    settle();
  }

 private:
  void settle() {
    while (!empty() && !(gradients_.is_displaced(ChunkId{chunk_}) && records_.is_streamed(ChunkId{chunk_})))
      ++chunk_;
  }

  const FlatSpace& space_;
  const GradientStore& gradients_;
  const RecordStore& records_;
  uint32_t chunk_ = 0;
  uint32_t block_ = 0;
};

}  // namespace

void Offloader::Parts::restore_parameters() {
  watch.set_activity("restoring parameters");
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (!gradients->is_displaced(chunk)) continue;
    ++counters.restored_chunk_count;
    if (records->is_streamed(chunk)) continue;
    const uint64_t tile_bytes = plan.record_layout.tile_bytes();
    workers.parallel_for(space.chunk(chunk).tile_count(), [&](size_t tile) {
      derive_parameters(chunk, {records->resident(chunk) + tile * tile_bytes, tile_bytes},
                        home->host_slot(chunk) + tile * parameter_tile_bytes(space, chunk));
    });
  }
  restore_streamed_parameters();
  gradients->end_displacement();
}

// Every block is read once, a few at a time, and taken in order.
void Offloader::Parts::restore_streamed_parameters() {
  DisplacedBlocks blocks(space, *gradients, *records);
  if (blocks.empty()) return;
  std::array<BlockRead, kMostReads> reads;
  const uint32_t depth = std::min(plan.ring_slots, kMostReads);
  for (uint32_t r = 0; r < depth; ++r) reads[r].memory = ring.acquire();
  std::exception_ptr failure;
  try {
    uint64_t started = 0;
    for (uint64_t at = 0; at < started || !blocks.empty(); ++at) {
      for (; started < at + depth && !blocks.empty(); ++started) {
        BlockRead& next = reads[started % depth];
        blocks.take(next);
        next.done = false;
        next.request = record_store->read_request(
            next.chunk, next.block, next.memory.first(record_store->block_bytes(next.chunk, next.block)));
        next.request.context = &next;
        next.request.on_complete = [](void* context, const io::Completion& completion) noexcept {
          auto& read = *static_cast<BlockRead*>(context);
          read.completion = completion;
          read.done = true;
        };
        counters.restore_read_bytes += next.request.bytes;
        engine->submit({&next.request, 1});
      }
      const BlockRead& read = reads[at % depth];
      while (!read.done) {
        wait_watched(*engine, watch,
                     {"optimizer states", "nvme -> host", read.chunk, &read.request,
                      record_store->path_of(read.request)});
      }
      record_store->end_read(read.chunk, read.block, read.request, read.completion);
      const uint64_t first_tile = read.block * plan.ring_slot_bytes / plan.record_layout.tile_bytes();
      derive_parameters(read.chunk, {read.request.data, read.request.bytes},
                        home->host_slot(read.chunk) + first_tile * parameter_tile_bytes(space, read.chunk));
    }
  } catch (...) {
    failure = std::current_exception();
  }
  while (engine->in_flight() > 0) engine->wait(1);  // what is in flight refers to what goes now
  for (uint32_t r = 0; r < depth; ++r) ring.release(reads[r].memory);
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace terrace
