// The inside of a PinnedEpoch. Not for others.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/commits/epoch_committer.h>
#include <terrace/offload/commits/pinned_epoch.h>
#include <terrace/offload/transfer/block_transfer.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

class PinnedEpoch::Parts {
 public:
  // `memory` holds blocks of either store and is this object's until it goes. All references outlive it.
  Parts(EpochCommitter& committer, const EpochStores& stores, const FlatSpace& space,
        std::unique_ptr<io::Engine> engine, std::span<std::byte> memory, uint64_t block_bytes,
        InstructionSet set);
  ~Parts();

  // The blocks of one store that are part of the commit, end to end in flat order.
  class Run {
   public:
    Run(BlockStore* store, const BlockStore::Snapshot& snapshot, const FlatSpace& space, bool trainable);
    uint64_t bytes() const { return bytes_; }
    // The block that has this byte of the run: where it begins in the run, and its size.
    struct Extent {
      uint64_t begin = 0;
      uint64_t bytes = 0;
    };
    Extent block_at(uint64_t byte) const;

   private:
    friend class Parts;
    struct Piece {
      ChunkId chunk;
      uint64_t begin;  // byte of the run
    };
    BlockStore* store_;
    const BlockStore::Snapshot& snapshot_;
    std::vector<Piece> chunks_;
    uint64_t bytes_ = 0;
  };
  void read(const Run& run, uint64_t begin, std::span<std::byte> destination);
  // Canonical tiles, joined of records and parameters of this commit where it has no whole masters.
  void read_records(uint64_t first_tile, std::span<std::byte> tiles);
  bool clone(const Run& run, int fd);

  const EpochSlots& slots() const { return slots_; }
  const Run& records() const { return records_; }
  const Run& frozen() const { return frozen_; }
  const RecordLayout& layout() const { return layout_; }

 private:
  // A block of memory, and the part of its contents that is wanted.
  struct Buffer {
    std::span<std::byte> memory;
    std::span<std::byte> destination;
    uint64_t skip = 0;  // bytes of the block before the wanted ones
    BlockTransfer read;
  };
  static void finish(Buffer& buffer);
  // The parameters of a tile, from the block that was read last where they are in it.
  const std::byte* parameters_of_tile(uint64_t tile);

  EpochCommitter& committer_;
  const EpochSlots& slots_;
  std::unique_ptr<io::Engine> engine_;
  std::vector<Buffer> buffers_;
  const Run records_;
  const Run frozen_;
  const Run parameters_;
  const RecordLayout layout_;
  const InstructionSet instruction_set_;
  std::span<std::byte> unjoined_records_;  // a block of each, where they are joined
  std::span<std::byte> unjoined_parameters_;
  Run::Extent unjoined_extent_;  // of the parameters that are there
};

}  // namespace terrace
