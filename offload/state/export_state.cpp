// The part of TrainingState that hands the state out and reads each block of it once.
#include <algorithm>
#include <array>
#include <vector>

#include <terrace/memory/space/tensor_runs.h>
#include <terrace/offload/state/state_blocks.h>
#include <terrace/offload/state/step_boundary.h>
#include <terrace/offload/state/training_state.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {
namespace {

// Hands out what the tile has of the wanted tensors; `values` are the tile's.
void hand_out_tile(const FlatSpace& space, ChunkId chunk, uint64_t tile, const float* values,
                   TrainingState::Wanted wanted, TrainingState::ValueSink sink) {
  for_each_tensor_in(space, chunk, tile * kTileElements, kTileElements,
                     [&](TensorId tensor, uint64_t element, uint64_t at, uint64_t elements) {
                       if (wanted(tensor)) sink(tensor, element, {values + at, elements});
                     });
}

}  // namespace

uint64_t TrainingState::record_tile_count() const {
  uint64_t tiles = 0;
  for (const Section& section : blocks_.run().space.sections())
    tiles += section.trainable ? section.elements / kTileElements : 0;
  return tiles;
}

uint64_t TrainingState::frozen_bytes() const {
  uint64_t bytes = 0;
  for (const Section& section : blocks_.run().space.sections())
    bytes += section.trainable ? 0 : section.elements * bytes_of(section.type);
  return bytes;
}

// --- What all ranks have of a chunk, in flat order; the first rank gets it ---

void TrainingState::walk_records(ChunkId chunk, WantedElements wanted, TakeTiles take) {
  const RunContext& run = blocks_.run();
  const RingBlock bounce(blocks_.ring());
  const uint64_t tile_bytes = run.plan.record_layout.tile_bytes();
  const uint64_t block_tiles = bounce.memory().size() / tile_bytes;
  const std::byte* parameters = nullptr;
  for (uint32_t rank = 0; rank < run.shards.count(); ++rank) {
    const ShardTiles tiles = run.shards.of(chunk, rank);
    const bool is_mine = rank == run.shards.rank();
    for (uint64_t first = 0; first < tiles.tile_count; first += block_tiles) {
      const uint64_t count = std::min(block_tiles, tiles.tile_count - first);
      const uint64_t in_chunk = tiles.first_tile + first;
      if (!wanted(chunk, in_chunk * kTileElements, count * kTileElements)) continue;
      const std::span<std::byte> block = bounce.memory().first(count * tile_bytes);
      if (is_mine) blocks_.homes().records.read(chunk, first, block);
      if (!run.converts_records()) {
        blocks_.bring_to_first_rank(rank, chunk, block);
        if (run.shards.rank() == 0) take(in_chunk, block);
        continue;
      }
      if (is_mine && parameters == nullptr && run.is_compact()) parameters = blocks_.parameters_of(chunk);
      const uint64_t parameter_bytes = run.is_compact() ? blocks_.parameter_tile_bytes(chunk) : 0;
      for (uint64_t t = 0; t < count; ++t) {
        const std::span<std::byte> tile = is_mine ? blocks_.join(block.subspan(t * tile_bytes, tile_bytes),
                                                                 parameters + (first + t) * parameter_bytes)
                                                  : blocks_.canonical_tile();
        blocks_.bring_to_first_rank(rank, chunk, tile);
        if (run.shards.rank() == 0) take(in_chunk + t, tile);
      }
    }
  }
}

void TrainingState::walk_frozen(ChunkId chunk, WantedElements wanted, TakeTiles take) {
  const RunContext& run = blocks_.run();
  const uint64_t tile_bytes = blocks_.parameter_tile_bytes(chunk);
  std::vector<std::byte> of_others;
  for (uint32_t rank = 0; rank < run.shards.count(); ++rank) {
    const ShardTiles tiles = run.shards.of(chunk, rank);
    if (tiles.tile_count == 0 || !wanted(chunk, tiles.first_element(), tiles.elements())) continue;
    const bool is_mine = rank == run.shards.rank();
    std::byte* bytes = is_mine ? const_cast<std::byte*>(blocks_.parameters_of(chunk)) : nullptr;
    if (!is_mine && run.shards.rank() == 0) {
      of_others.resize(tiles.tile_count * tile_bytes);
      bytes = of_others.data();
    }
    blocks_.bring_to_first_rank(rank, chunk, {bytes, tiles.tile_count * tile_bytes});
    if (run.shards.rank() == 0) take(tiles.first_tile, {bytes, tiles.tile_count * tile_bytes});
  }
}

// --- Exports ---

void TrainingState::export_records(FunctionRef<void(std::span<const std::byte>)> sink) {
  static_cast<void>(boundary_.whole("cannot export the optimizer states of"));
  const RunContext& run = blocks_.run();
  run.watch.set_activity("saving the state");
  for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
    if (!run.is_trained(ChunkId{c})) continue;
    walk_records(
        ChunkId{c}, [](ChunkId, uint64_t, uint64_t) { return true; },
        [&](uint64_t, std::span<const std::byte> tiles) { sink(tiles); });
  }
}

void TrainingState::export_frozen(FunctionRef<void(std::span<const std::byte>)> sink) {
  static_cast<void>(boundary_.whole("cannot export the frozen parameters of"));
  const RunContext& run = blocks_.run();
  for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
    if (run.is_trained(ChunkId{c})) continue;
    walk_frozen(
        ChunkId{c}, [](ChunkId, uint64_t, uint64_t) { return true; },
        [&](uint64_t, std::span<const std::byte> parameters) { sink(parameters); });
  }
}

// --- The values of chosen tensors ---

bool TrainingState::is_wanted(ChunkId chunk, uint64_t first_element, uint64_t count, Wanted wanted) const {
  bool any = false;
  for_each_tensor_in(blocks_.run().space, chunk, first_element, count,
                     [&](TensorId tensor, uint64_t, uint64_t, uint64_t) { any = any || wanted(tensor); });
  return any;
}

void TrainingState::export_masters(ChunkId chunk, Wanted wanted, ValueSink sink) {
  const RunContext& run = blocks_.run();
  const uint64_t tile_bytes = run.plan.record_layout.canonical().tile_bytes();
  const auto is_wanted_here = [&](ChunkId of, uint64_t first, uint64_t count) {
    return is_wanted(of, first, count, wanted);
  };
  walk_records(chunk, is_wanted_here, [&](uint64_t first_tile, std::span<const std::byte> tiles) {
    for (uint64_t t = 0; t * tile_bytes < tiles.size(); ++t) {
      const auto* const master = reinterpret_cast<const float*>(tiles.data() + t * tile_bytes);
      hand_out_tile(run.space, chunk, first_tile + t, master, wanted, sink);
    }
  });
}

void TrainingState::export_frozen_values(ChunkId chunk, Wanted wanted, ValueSink sink) {
  const RunContext& run = blocks_.run();
  const uint64_t tile_bytes = blocks_.parameter_tile_bytes(chunk);
  const auto is_wanted_here = [&](ChunkId of, uint64_t first, uint64_t count) {
    return is_wanted(of, first, count, wanted);
  };
  walk_frozen(chunk, is_wanted_here, [&](uint64_t first_tile, std::span<const std::byte> parameters) {
    std::array<float, kTileElements> values;
    for (uint64_t t = 0; t * tile_bytes < parameters.size(); ++t) {
      convert_to_float(run.instruction_set, parameters.data() + t * tile_bytes,
                       run.space.section_of(chunk).type, values.data(), values.size());
      hand_out_tile(run.space, chunk, first_tile + t, values.data(), wanted, sink);
    }
  });
}

void TrainingState::export_values(Wanted wanted, ValueSink sink) {
  static_cast<void>(boundary_.whole("cannot export the weights of"));
  const RunContext& run = blocks_.run();
  for (uint32_t c = 0; c < run.space.chunk_count(); ++c) {
    if (run.is_trained(ChunkId{c})) {
      export_masters(ChunkId{c}, wanted, sink);
    } else {
      export_frozen_values(ChunkId{c}, wanted, sink);
    }
  }
}

}  // namespace terrace
