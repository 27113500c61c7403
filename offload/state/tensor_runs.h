// TensorRun: what a rank has of a tensor, chunk by chunk; and how all ranks get to know all of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <terrace/memory/space/chunk_shards.h>
#include <terrace/offload/plan/run_context.h>

namespace terrace {

// Elements of one tensor in a rank's tiles of one chunk.
struct TensorRun {
  ChunkId chunk{};
  uint64_t first_element = 0;  // from the first one of the rank's
  uint64_t count = 0;
  uint64_t at = 0;  // of the values that the caller reads or writes
};

// Calls body(run) for each chunk of the tensor in whose tiles of that rank `count` elements from `first` on
// lie, in part.
template <typename Body>
void for_each_run(const ChunkShards& shards, uint32_t rank, TensorId tensor, uint64_t first, uint64_t count,
                  Body body) {
  const FlatSpace& space = shards.space();
  const TensorPlace& place = space.place(tensor);
  for (uint32_t c = place.first_chunk; c < place.first_chunk + place.chunk_count; ++c) {
    const FlatSpace::Part part = space.part_of(tensor, ChunkId{c});
    const ShardTiles tiles = shards.of(ChunkId{c}, rank);
    // The part's elements among those of the rank, counted in the chunk.
    const uint64_t begin = std::max(part.first_in_chunk, tiles.first_element());
    const uint64_t end =
        std::min(part.first_in_chunk + part.elements, tiles.first_element() + tiles.elements());
    if (begin >= end) continue;
    const uint64_t in_tensor = part.first_in_tensor + (begin - part.first_in_chunk);
    const uint64_t from = std::max(first, in_tensor), to = std::min(first + count, in_tensor + (end - begin));
    if (from < to)
      body(
          TensorRun{ChunkId{c}, begin - tiles.first_element() + (from - in_tensor), to - from, from - first});
  }
}

// Gives every rank the elements that the others have of its own: `elements` from `first` on, of which each
// has those in its tiles. All ranks call it.
void share_elements(const RunContext& run, TensorId tensor, uint64_t first, std::span<std::byte> elements,
                    uint64_t element_bytes);

}  // namespace terrace
