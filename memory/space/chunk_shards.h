// ChunkShards: which tiles of every chunk each of N ranks owns. It is pure arithmetic over a FlatSpace, which
// knows nothing of ranks.
//
// A chunk of T tiles has transfer shards of t = ceil(T / N) tiles; rank r owns the tiles
// [min(r t, T), min((r + 1) t, T)), so the last ranks may own fewer, or none. No tile lies in two shards, so
// neither does a block of the norm. Nothing is padded: what follows the end of a chunk is in no shard.
// Immutable: any thread may read it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/memory/space/flat_space.h>

namespace terrace {

// A run of tiles of a chunk. Its elements are counted from the beginning of the chunk.
struct ShardTiles {
  uint64_t first_tile = 0;
  uint64_t tile_count = 0;

  uint64_t first_element() const { return first_tile * kTileElements; }
  uint64_t elements() const { return tile_count * kTileElements; }
  bool operator==(const ShardTiles&) const = default;
};

class ChunkShards {
 public:
  // The shards of `rank` among `count` ranks; `space` outlives this.
  ChunkShards(const FlatSpace& space, uint32_t rank, uint32_t count);

  uint32_t rank() const { return rank_; }
  uint32_t count() const { return count_; }
  ShardTiles own(ChunkId chunk) const { return of(chunk, rank_); }
  ShardTiles of(ChunkId chunk, uint32_t rank) const;
  // The tiles of every rank's part where the parts of a chunk are gathered: the same for all ranks. The N
  // parts together have the chunk's tiles, or up to N - 1 more.
  uint64_t transfer_tiles(ChunkId chunk) const;
  const FlatSpace& space() const { return space_; }
  // Of the own tiles: elements, the bytes of their parameters, and where these begin among the chunk's.
  uint64_t elements(ChunkId chunk) const { return own(chunk).elements(); }
  uint64_t param_bytes(ChunkId chunk) const;
  uint64_t first_param_byte(ChunkId chunk) const;
  // FlatSpace::end_of_part() among the own elements: 0 where the part ends before them.
  uint64_t end_of_part(ChunkId chunk, size_t index) const;
  // The segments of the own tiles, cut where these end and counted from their first element.
  std::span<const Segment> segments_of(ChunkId chunk) const;

  // The invariants as equations; aborts on a violation.
  void check() const;

 private:
  const FlatSpace& space_;
  const uint32_t rank_;
  const uint32_t count_;
  std::vector<Segment> segments_;        // concatenated; with one rank none, as the next
  std::vector<uint32_t> segment_begin_;  // chunk_count + 1 entries
};

}  // namespace terrace
