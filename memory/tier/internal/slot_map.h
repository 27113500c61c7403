// SlotMap: the slot of each block, the holders of each slot, and the free slots. It is arithmetic only and
// must never know a file. Its owner's mutex guards it.
//
// A slot is in one state:
//
//   free     --take-->       writing
//   writing  --put-->        held       by its block
//   writing  --put_back-->   free       nothing was written, or nothing of use
//   writing  --set_aside-->  aside      for good: it does not take writes
//   held     --(a snapshot takes or drops it; its block leaves it)--> held, or free with its last holder
//
// Free slots are given out in a round: the next one behind the last, from the front again at the end. Blocks
// that a step writes in sequence then lie in sequence and are read and copied in runs; and every slot is
// written equally often.
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
  // The free slots of each path.
  std::span<const uint64_t> free_slots() const { return free_slots_; }
  uint64_t bad_slots() const { return bad_slots_; }
  const StoredBlock& current(size_t block) const { return current_[block]; }

  uint32_t take(uint32_t path);  // the next free slot
  void put(size_t block, const StoredBlock& to);
  void put_back(const StoredBlock& taken);
  void set_aside(const StoredBlock& taken);
  // The block stays in its slot with new bytes.
  void reseal(size_t block, uint64_t checksum) { current_[block].checksum = checksum; }
  // Sets blocks and slots as a commit has them; nothing may have been written before.
  void restore(std::span<const StoredBlock> blocks);

  // Snapshots have numbers; a number is used again when its snapshot is closed.
  uint32_t open_snapshot() { return open_snapshot(current_); }
  uint32_t open_snapshot(std::span<const StoredBlock> blocks);
  std::span<const StoredBlock> snapshot(uint32_t number) const { return snapshots_[number].blocks; }
  // Replaces the snapshot's version of the block by the current one.
  void adopt(uint32_t number, size_t block);
  void close_snapshot(uint32_t number);
  size_t open_snapshot_count() const;

  void check() const;

 private:
  enum class SlotState : uint8_t { free, writing, held, aside };
  struct Path {
    uint32_t slot_count = 0;
    std::vector<uint64_t> free_bits;   // a set bit for every free slot
    std::vector<uint64_t> free_words;  // a set bit for every word of free_bits that is not 0
    uint32_t next = 0;                 // where the search for a free slot begins
    std::vector<SlotState> states;
    std::vector<uint32_t> holders;  // how many hold each slot: its block and snapshots
  };
  struct SnapshotEntry {
    bool open = false;
    std::vector<StoredBlock> blocks;  // kept when closed, for its memory
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
