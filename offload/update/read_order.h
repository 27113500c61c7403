// ReadOrder: in which order the update reads its blocks, so that every path of the tier has something to do
// and a slow one holds up no other. Of each path the blocks come in the order in which their chunks were
// added; the next one is of the path that will be idle soonest. With one path that is the order of the
// chunks. It never changes a result: the update is done element by element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/memory/tier/block_store.h>
#include <terrace/memory/tier/path_balancer.h>

namespace terrace {

class ReadOrder {
 public:
  struct Item {
    ChunkId chunk{};
    uint32_t block = 0;
    uint32_t turn = 0;  // of its chunk: how many were added before
  };

  // Of `chunks` at most, which have blocks in `store`; that outlives this. Null: there are none.
  ReadOrder(const BlockStore* store, std::span<const ChunkId> chunks);

  // From the start, with no chunk. Blocks are looked up where they lie when their turn comes. Chunk by chunk:
  // all blocks of a chunk come before any of the next one.
  void begin(bool chunk_by_chunk);
  // Each chunk once.
  void add(ChunkId chunk);
  bool empty() const { return left_ == 0; }
  // Not when empty().
  Item take();

 private:
  // The blocks of `items_` that lie on one path.
  struct Run {
    uint32_t next = 0;
    uint32_t end = 0;
  };
  void fill();

  const BlockStore* store_;
  std::vector<ChunkId> chunks_;  // as they were added
  std::vector<Item> items_;      // of the chunks at hand, path by path
  std::vector<Run> runs_;        // by path
  bool chunk_by_chunk_ = false;
  size_t next_chunk_ = 0;  // not among the items yet
  uint64_t in_items_ = 0;  // of these, not taken
  uint64_t left_ = 0;
};

}  // namespace terrace
