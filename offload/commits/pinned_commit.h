// PinnedCommit: a commit that stays unchanged while training goes on, so that it can be copied. It never
// reads memory that training uses, and training never waits for it; only the next commit does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <terrace/base/record_layout.h>

namespace terrace {

// Commits::pin() makes a PinnedCommit, which must be destroyed before the offloader. One thread at a time
// uses it, not necessarily the step thread. It has an engine and a few blocks of host memory of its own.
class PinnedCommit {
 public:
  class Reader;  // private to the offloader
  explicit PinnedCommit(std::unique_ptr<Reader> reader);
  ~PinnedCommit();
  PinnedCommit(const PinnedCommit&) = delete;
  PinnedCommit& operator=(const PinnedCommit&) = delete;

  uint64_t commit() const;
  const std::string& info() const;
  // As from TrainingState::tensor_steps().
  std::span<const uint64_t> tensor_steps() const;

  // Records come as from TrainingState::export_records(): tiles of the trainable sections in flat order, with
  // whole masters in any case. read_records() fills `tiles`, a multiple of record_layout().tile_bytes(), from
  // tile `first_tile` on, and verifies every byte. Throws Error(io) and Error(corrupt).
  RecordLayout record_layout() const;
  uint64_t block_tiles() const;  // the most tiles of a block, which is read whole
  uint64_t record_tile_count() const;
  void read_records(uint64_t first_tile, std::span<std::byte> tiles);
  // Frozen parameters come as from TrainingState::export_frozen(); `offset` and the size are multiples of
  // 4096.
  uint64_t frozen_bytes() const;
  void read_frozen(uint64_t offset, std::span<std::byte> parameters);

  // Put all records (or all frozen parameters) in flat order at the beginning of the file without copying,
  // where its file system can share blocks with the tier's. If it cannot, return false, and the contents of
  // the file are undefined. Nothing is verified: the bytes are not read. Compact records cannot be shared.
  bool clone_records(int fd);
  bool clone_frozen(int fd);

 private:
  std::unique_ptr<Reader> reader_;
};

}  // namespace terrace
