// SlotMap: which slot holds which block, who else holds a slot, and which slots are free. Arithmetic only: it
// must never know a file, and its owner's mutex is its own.
//
// A slot is in one state:
//
//   free     --take-->       writing
//   writing  --put-->        held       by its block
//   writing  --put_back-->   free       nothing was written, or nothing of use
//   writing  --set_aside-->  aside      for good: it does not take writes
//   held     --(a snapshot takes or drops it; its block leaves it)--> held, or free with its last holder
//
// Free slots are given out in a round: the next one behind the last, from the front again at the end. What a
// step writes one after the other then lies one after the other, in runs that are read and copied as such;
// and every slot is written equally often.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/memory/tier/tier_manifest.h>

namespace terrace {

class SlotMap {
 public:
  // All slots are free, and no block was ever written.
  SlotMap(std::vector<uint32_t> slot_counts, size_t block_count);

  size_t block_count() const { return current_.size(); }
  uint32_t slot_count(uint32_t path) const { return paths_[path].slot_count; }
  // By path.
  std::span<const uint64_t> free_slots() const { return free_slots_; }
  uint64_t bad_slots() const { return bad_slots_; }
  const StoredBlock& current(size_t block) const { return current_[block]; }

  uint32_t take(uint32_t path);  // the next free slot
  void put(size_t block, const StoredBlock& to);
  void put_back(const StoredBlock& taken);
  void set_aside(const StoredBlock& taken);
  // The block stays in its slot with other bytes.
  void reseal(size_t block, uint64_t checksum) { current_[block].checksum = checksum; }
  // Blocks and slots as a commit has them; nothing was written before.
  void restore(std::span<const StoredBlock> blocks);

  // Snapshots by number; a number is used again when its snapshot has gone.
  uint32_t open_snapshot() { return open_snapshot(current_); }
  uint32_t open_snapshot(std::span<const StoredBlock> blocks);
  std::span<const StoredBlock> snapshot(uint32_t number) const { return snapshots_[number].blocks; }
  // The block as it is now takes the place of the one that the snapshot has.
  void adopt(uint32_t number, size_t block);
  void close_snapshot(uint32_t number);
  size_t open_snapshot_count() const;

  void check() const;

 private:
  enum class SlotState : uint8_t { free, writing, held, aside };
  struct Path {
    uint32_t slot_count = 0;
    std::vector<uint64_t> free_bits;   // a set bit for every free slot,
    std::vector<uint64_t> free_words;  // and for every word of those that is not 0
    uint32_t next = 0;                 // where the search for a free slot begins
    std::vector<SlotState> states;
    std::vector<uint32_t> holders;  // the block itself, and snapshots
  };
  struct SnapshotEntry {
    bool open = false;
    std::vector<StoredBlock> blocks;  // kept for its memory
  };
  void hold(const StoredBlock& where);
  void let_go(const StoredBlock& where);
  void release(const StoredBlock& where);
  static void set_free(Path& path, uint32_t slot, bool free);
  Path& path_of(const StoredBlock& where);

  std::vector<Path> paths_;
  std::vector<uint64_t> free_slots_;
  uint64_t bad_slots_ = 0;
  std::vector<StoredBlock> current_;
  std::vector<SnapshotEntry> snapshots_;
};

}  // namespace terrace
