// PinnedEpoch: a committed state that stays as it is while training goes on, for copies of it. It never reads
// what training works with, and training never waits for it, but for the next commit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <terrace/base/record_layout.h>

namespace terrace {

// Made by Commits::pin() and gone before the offloader is. Used by one thread at a time, which need
// not be the step thread. It has an engine and a few blocks of host memory of its own.
class PinnedEpoch {
 public:
  class Parts;  // of the offloader
  explicit PinnedEpoch(std::unique_ptr<Parts> parts);
  ~PinnedEpoch();
  PinnedEpoch(const PinnedEpoch&) = delete;
  PinnedEpoch& operator=(const PinnedEpoch&) = delete;

  uint64_t epoch() const;
  const std::string& info() const;

  // As TrainingState::export_records() has them: tiles of the trainable sections in flat order, with whole
  // masters whatever the commit holds. Fills `tiles`, a multiple of record_layout().tile_bytes(), from tile
  // `first_tile` on; every byte is verified. Throws Error(io) and Error(corrupt).
  RecordLayout record_layout() const;
  uint64_t block_tiles() const;  // of a block of the tier, at most; each block that is touched is read whole
  uint64_t record_tile_count() const;
  void read_records(uint64_t first_tile, std::span<std::byte> tiles);
  // As TrainingState::export_frozen() has them; `offset` and the size are multiples of 4096.
  uint64_t frozen_bytes() const;
  void read_frozen(uint64_t offset, std::span<std::byte> parameters);

  // Makes the beginning of the file all records (or all frozen parameters) in flat order without copying,
  // where its file system can share blocks with the tier's. False: it cannot; what the file holds is
  // undefined then. Nothing is verified: the bytes are not read. Records that a commit holds in another form
  // cannot be shared.
  bool clone_records(int fd);
  bool clone_frozen(int fd);

 private:
  std::unique_ptr<Parts> parts_;
};

}  // namespace terrace
