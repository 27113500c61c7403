// SavedDisk: the room on nvme of saved activations, in units of one size. How much is saved is not known
// before, so files are added when those that are there are full. It must never move a byte itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <terrace/base/units.h>
#include <terrace/memory/tier/block_store.h>

namespace terrace {

// One thread at a time uses it.
class SavedDisk {
 public:
  // Large enough for the rate of a drive, small enough that little of the last unit of a block is unused.
  static constexpr uint64_t kUnitBytes = 256 * kKiB;
  // The first file has at least so many units, and every later one as many as all before.
  static constexpr uint32_t kFirstUnits = 64;

  // A chunk of one block in a store.
  struct Unit {
    BlockStore* store = nullptr;
    ChunkId chunk{};
  };
  // Makes store `number`, of so many chunks of kUnitBytes, each a block. Throws Error(capacity) where the
  // drives are full.
  using MakeStore = std::function<std::unique_ptr<BlockStore>(uint32_t number, uint32_t units)>;

  explicit SavedDisk(MakeStore make_store) : make_store_(std::move(make_store)) {}

  static uint32_t units_of(uint64_t bytes) { return static_cast<uint32_t>(divide_up(bytes, kUnitBytes)); }
  // Puts so many units into the empty `units`. Throws what make_store throws, and takes nothing then.
  void take(uint32_t count, std::vector<Unit>& units);
  // Takes the units back, and leaves the list empty.
  void give_back(std::vector<Unit>& units);

  uint64_t used_bytes() const { return (unit_count_ - free_.size()) * kUnitBytes; }
  uint64_t file_bytes() const;  // of all files

 private:
  void add_store(uint32_t missing);

  const MakeStore make_store_;
  std::vector<std::unique_ptr<BlockStore>> stores_;
  std::vector<Unit> free_;
  uint64_t unit_count_ = 0;
};

}  // namespace terrace
