// SavedMemory: the host memory of saved activations. It grows with what is saved, never beyond its budget,
// and is locked as the rest of the host tier is. What was taken and given back is used again, from the lowest
// address on. It must never know what lies in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/host/host_arena.h>

namespace terrace {

// One thread at a time uses it.
class SavedMemory {
 public:
  struct Limits {
    uint64_t most_bytes = 0;                         // the budget
    uint64_t granule_bytes = HostArena::kAlignment;  // blocks cost multiples of this
    bool lock_pages = true;
  };
  // The device outlives this. Nothing is allocated before the first take().
  SavedMemory(const Limits& limits, Device& device, Log& log);

  // The bytes that a block takes of the budget.
  uint64_t cost_bytes(uint64_t bytes) const { return round_up(bytes, granule_bytes_); }
  // A block of cost_bytes(bytes), aligned to HostArena::kAlignment; null where no gap is large enough. Throws
  // Error(capacity) where the system has no memory for a budget that has room.
  std::byte* take(uint64_t bytes);
  bool has_room_for(uint64_t bytes) const;
  void give_back(const std::byte* block);

  // Calls `copy` for each piece of a block that one copy may move, with its offset.
  void for_each_piece(const std::byte* block, uint64_t bytes,
                      FunctionRef<void(uint64_t offset, uint64_t bytes)> copy) const;

  // Another budget, at most the first one. What is held above it goes back to the system; no block may be
  // there.
  void set_most(uint64_t bytes);
  uint64_t most_bytes() const { return most_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }  // by blocks
  uint64_t held_bytes() const { return held_bytes_; }  // of the system's memory

 private:
  struct Block {
    uint64_t offset;
    uint64_t bytes;
  };
  // What was brought, and locked for the device, at once.
  struct Piece {
    uint64_t end;
    std::unique_ptr<HostMemoryLock> lock;
  };
  // The first gap of so many bytes: where it begins, and before which block.
  struct Gap {
    uint64_t offset;
    size_t before;
  };
  Gap first_gap(uint64_t bytes) const;
  std::byte* base() const { return memory_.data(); }
  std::span<std::byte> part(uint64_t begin, uint64_t end) const {
    return memory_.subspan(begin, end - begin);
  }
  void grow(uint64_t end);

  const uint64_t granule_bytes_;
  const bool lock_pages_;
  Device& device_;
  Log& log_;
  uint64_t most_bytes_;
  uint64_t used_bytes_ = 0;
  uint64_t held_bytes_ = 0;
  std::unique_ptr<HostArena> arena_;  // null before the first block
  std::span<std::byte> memory_;       // of the arena
  std::vector<Block> blocks_;         // by offset
  std::vector<Piece> pieces_;         // by end; destroyed before the arena
};

}  // namespace terrace
