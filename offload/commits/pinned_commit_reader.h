// PinnedCommit::Reader: the inside of a PinnedCommit, private to the offloader.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/commits/committer.h>
#include <terrace/offload/commits/pinned_commit.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

class PinnedCommit::Reader {
 public:
  // `memory` holds blocks of any store and belongs to this object for its life. All references outlive this
  // object.
  Reader(Committer& committer, const CommitStores& stores, const FlatSpace& space,
         std::unique_ptr<io::Engine> engine, std::span<std::byte> memory, uint64_t block_bytes,
         InstructionSet set);
  ~Reader();

  // Run: the blocks of one store that are part of the commit, end to end in flat order.
  class Run {
   public:
    Run(BlockStore* store, const BlockStore::Snapshot& snapshot, const FlatSpace& space, bool trainable);
    uint64_t bytes() const { return bytes_; }
    // Extent: where a block begins in the run, and its size. block_at() gives that of the block with this
    // byte of the run.
    struct Extent {
      uint64_t begin = 0;
      uint64_t bytes = 0;
    };
    Extent block_at(uint64_t byte) const;

   private:
    friend class Reader;
    struct Piece {
      ChunkId chunk;
      uint64_t begin;  // the chunk's first byte in the run
    };
    BlockStore* store_;
    const BlockStore::Snapshot& snapshot_;
    std::vector<Piece> chunks_;
    uint64_t bytes_ = 0;
  };
  void read(const Run& run, uint64_t begin, std::span<std::byte> destination);
  // Reads canonical tiles, joined from records and parameters of this commit where it has no whole masters.
  void read_records(uint64_t first_tile, std::span<std::byte> tiles);
  bool clone(const Run& run, int fd);

  const CommitSlots& slots() const { return slots_; }
  const Run& records() const { return records_; }
  const Run& frozen() const { return frozen_; }
  const RecordLayout& layout() const { return layout_; }

 private:
  // A block of memory and the wanted part of its contents.
  struct Buffer {
    std::span<std::byte> memory;
    std::span<std::byte> destination;
    uint64_t skip = 0;  // bytes of the block before the wanted ones
    BlockTransfer read;
  };
  static void finish(Buffer& buffer);
  // The parameters of a tile; reads a block unless the last one read holds them.
  const std::byte* parameters_of_tile(uint64_t tile);

  Committer& committer_;
  const CommitSlots& slots_;
  std::unique_ptr<io::Engine> engine_;
  std::vector<Buffer> buffers_;
  const Run records_;
  const Run frozen_;
  const Run parameters_;
  const RecordLayout layout_;
  const InstructionSet instruction_set_;
  std::span<std::byte> unjoined_records_;  // one block of each, where tiles are joined
  std::span<std::byte> unjoined_parameters_;
  Run::Extent unjoined_extent_;  // of the parameters in unjoined_parameters_
};

}  // namespace terrace
