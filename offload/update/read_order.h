// ReadOrder: the order in which the update reads its blocks, so that every path of the tier stays busy and a
// slow path holds up no other. The blocks of one path come in the order in which their chunks were added; the
// next block is on the path that will be idle soonest. With one path this is the order of the chunks. It
// never changes a result: the update works element by element.
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
    uint32_t turn = 0;  // the number of chunks added before its chunk
  };

  // `chunks` are all chunks that may be added; they have blocks in `store`, which outlives this. A null store
  // has no blocks.
  ReadOrder(const BlockStore* store, std::span<const ChunkId> chunks);

  // Starts anew with no chunk. The path of a block is looked up when its chunk's turn comes. With
  // `chunk_by_chunk` all blocks of a chunk come before any of the next one.
  void begin(bool chunk_by_chunk);
  // Adds a chunk; each chunk once.
  void add(ChunkId chunk);
  bool empty() const { return left_ == 0; }
  // Takes the next block; must not be called when empty().
  Item take();

 private:
  // The blocks of `items_` that lie on one path.
  struct Run {
    uint32_t next = 0;
    uint32_t end = 0;
  };
  void fill();

  const BlockStore* store_;
  std::vector<ChunkId> chunks_;  // in the order of add()
  std::vector<Item> items_;      // blocks of the chunks at hand, path by path
  std::vector<Run> runs_;        // by path
  bool chunk_by_chunk_ = false;
  size_t next_chunk_ = 0;  // the first chunk that is not among the items yet
  uint64_t in_items_ = 0;  // items that are not taken yet
  uint64_t left_ = 0;
};

}  // namespace terrace
