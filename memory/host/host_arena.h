// HostArena: the one permanent piece of host memory from which everything of the host tier is carved at
// start-up. It is exact in size, in huge pages, touched once, and locked where the system allows. A piece may
// be given back to the system and restored at its address. It must never move, grow, or hand out a byte
// beyond its budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/pages.h>

namespace terrace {

struct HostArenaOptions {
  uint64_t budget_bytes = 0;  // rounded down to a multiple of HostArena::kAlignment
  // When the limit does not allow it, the arena works unlocked and one warning says so.
  bool lock_pages = true;
  // For plans: the arena has addresses without memory. Everything is taken and counted as usual, and any
  // access faults.
  bool dry = false;
  // No page is there before restore() brings it.
  bool is_empty_at_first = false;
  // The bytes of one mlock call; some kernels hold a lock of the whole process for its length.
  uint64_t lock_piece_bytes = kGiB;
};

// One thread at a time may use an arena.
class HostArena {
 public:
  // Every piece begins and ends on a multiple of this, which is all that direct I/O needs. Large pieces have
  // no coarser alignment: the whole arena is in huge pages anyway, and so the cost of a piece is known
  // before.
  static constexpr uint64_t kAlignment = 4096;
  static constexpr uint64_t cost_bytes(uint64_t bytes) { return round_up(bytes, kAlignment); }

  // Maps, touches and locks everything, unless dry. Throws Error(capacity) when the system has too little
  // memory.
  HostArena(HostArenaOptions options, Log& log);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Returns `bytes` of zeros for the life of the arena, aligned to kAlignment; the cost is cost_bytes(bytes).
  // Throws Error(capacity) naming `purpose` and every other purpose when it does not fit.
  std::span<std::byte> take(uint64_t bytes, std::string_view purpose);

  // release() gives all pages of a piece from take(), or of a part of one that consists of whole pages, back
  // to the system: nothing may touch or register them until restore() makes them available again, as zeros
  // and locked like the rest. restore() throws Error(capacity), and changes nothing, when the system has too
  // little memory.
  void release(std::span<std::byte> piece);
  void restore(std::span<std::byte> piece);

  struct LedgerEntry {
    std::string purpose;
    uint64_t bytes;  // with rounding
  };
  // The pieces in the order of take(), released or not. Invariant: the bytes add up to used_bytes() <=
  // budget_bytes().
  std::span<const LedgerEntry> ledger() const { return ledger_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t budget_bytes() const { return mapping_.memory().size(); }

  bool is_dry() const { return dry_; }
  bool locked() const { return locked_; }
  // The whole arena, for registration with io_uring or a GPU; 2 MiB aligned.
  std::span<std::byte> memory() { return mapping_.memory(); }

 private:
  void lock_pages(uint64_t piece_bytes, Log& log);

  const bool dry_;
  PageMapping mapping_;
  std::vector<LedgerEntry> ledger_;
  uint64_t used_bytes_ = 0;
  bool locked_ = false;
};

}  // namespace terrace
