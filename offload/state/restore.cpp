#include <terrace/offload/state/restore.h>

namespace terrace {

void restore_displaced_parameters(StateBlocks& blocks, OffloadCounters& counters) {
  const RunContext& run = blocks.run();
  const StateHomes& homes = blocks.homes();
  run.watch.set_activity("restoring parameters");
  const uint64_t tile_bytes = run.plan.record_layout.tile_bytes();
  for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (!homes.gradients.is_displaced(chunk)) continue;
    ++counters.restored_chunk_count;
    if (homes.records.is_streamed(chunk)) continue;
    run.workers.parallel_for(run.shards.own(chunk).tile_count, [&](size_t tile) {
      blocks.derive_parameters(chunk, {homes.records.resident(chunk) + tile * tile_bytes, tile_bytes},
                               homes.params.host_slot(chunk) + tile * blocks.parameter_tile_bytes(chunk));
    });
  }
  const auto is_wanted = [&](ChunkId chunk) {
    return homes.gradients.is_displaced(chunk) && homes.records.is_streamed(chunk);
  };
  blocks.read_records(is_wanted, [&](const BlockTransfer& read) {
    const ChunkId chunk = read.chunk();
    counters.restore_read_bytes += read.bytes().size();
    blocks.derive_parameters(
        chunk, read.bytes(),
        homes.params.host_slot(chunk) + blocks.first_tile_of(read) * blocks.parameter_tile_bytes(chunk));
  });
  homes.gradients.end_displacement();
}

}  // namespace terrace
