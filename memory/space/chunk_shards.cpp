#include <terrace/memory/space/chunk_shards.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>

namespace terrace {

ChunkShards::ChunkShards(const FlatSpace& space, uint32_t rank, uint32_t count)
    : space_(space), rank_(rank), count_(count) {
  TERRACE_ASSERT(rank < count, "a rank is one of the run's");
  if (count == 1) return;  // the chunks' own segments
  segment_begin_.push_back(0);
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const ShardTiles tiles = own(ChunkId{c});
    const uint64_t begin = tiles.first_element(), end = begin + tiles.elements();
    for (const Segment& segment : space.segments_of(ChunkId{c})) {
      const uint64_t from = std::max(begin, segment.first_element);
      const uint64_t to = std::min(end, segment.first_element + segment.elements);
      if (from < to) segments_.push_back({from - begin, to - from, segment.group});
    }
    segment_begin_.push_back(static_cast<uint32_t>(segments_.size()));
  }
}

uint64_t ChunkShards::transfer_tiles(ChunkId chunk) const {
  return divide_up(space_.chunk(chunk).tile_count(), count_);
}

ShardTiles ChunkShards::of(ChunkId chunk, uint32_t rank) const {
  const uint64_t tiles = space_.chunk(chunk).tile_count(), each = transfer_tiles(chunk);
  const uint64_t begin = std::min(rank * each, tiles), end = std::min((rank + 1) * each, tiles);
  return {begin, end - begin};
}

uint64_t ChunkShards::param_bytes(ChunkId chunk) const {
  return elements(chunk) * bytes_of(space_.section_of(chunk).type);
}

uint64_t ChunkShards::first_param_byte(ChunkId chunk) const {
  return own(chunk).first_element() * bytes_of(space_.section_of(chunk).type);
}

uint64_t ChunkShards::end_of_part(ChunkId chunk, size_t index) const {
  const ShardTiles tiles = own(chunk);
  const uint64_t begin = tiles.first_element(), end = space_.end_of_part(chunk, index);
  return end <= begin ? 0 : std::min(end - begin, tiles.elements());
}

std::span<const Segment> ChunkShards::segments_of(ChunkId chunk) const {
  if (count_ == 1) return space_.segments_of(chunk);
  const uint32_t begin = segment_begin_[index_of(chunk)], end = segment_begin_[index_of(chunk) + 1];
  return std::span(segments_).subspan(begin, end - begin);
}

void ChunkShards::check() const {
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    const ChunkId chunk{c};
    uint64_t next = 0;
    for (uint32_t r = 0; r < count_; ++r) {
      const ShardTiles tiles = of(chunk, r);
      TERRACE_ASSERT(tiles.first_tile == next && tiles.tile_count <= transfer_tiles(chunk),
                     "shards follow each other, none longer than what is transferred");
      next += tiles.tile_count;
    }
    TERRACE_ASSERT(next == space_.chunk(chunk).tile_count(), "the shards of all ranks are the chunk");
    uint64_t covered = 0;
    for (const Segment& segment : segments_of(chunk)) {
      TERRACE_ASSERT(segment.first_element == covered && segment.elements > 0, "segments leave no hole");
      covered += segment.elements;
    }
    TERRACE_ASSERT(covered == own(chunk).elements(), "segments cover the shard");
  }
}

}  // namespace terrace
