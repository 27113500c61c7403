// Parameters made of their masters again, where gradients have displaced them and no update followed: a step
// that was skipped or abandoned. Exact, since parameters are always the rounded masters. Streamed.
#include <terrace/offload/offloader_parts.h>

namespace terrace {
namespace {

uint64_t parameter_tile_bytes(const FlatSpace& space, ChunkId chunk) {
  return kTileElements * bytes_of(space.section_of(chunk).type);
}

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

void Offloader::Parts::restore_streamed_parameters() {
  const auto wanted = [this](ChunkId chunk) {
    return gradients->is_displaced(chunk) && records->is_streamed(chunk);
  };
  read_record_blocks(wanted, [this](const BlockTransfer& read) {
    counters.restore_read_bytes += read.bytes().size();
    const uint64_t first_tile = read.block() * plan.ring_slot_bytes / plan.record_layout.tile_bytes();
    derive_parameters(read.chunk(), read.bytes(),
                      home->host_slot(read.chunk()) + first_tile * parameter_tile_bytes(space, read.chunk()));
  });
}

}  // namespace terrace
