// HostArena: the one permanent piece of host memory from which everything of the host tier is carved at
// start-up. Exact in size, huge pages, touched once, locked where the system allows. A piece may be given
// back to the system and had again, at its address. It must never move, grow, or hand out a byte beyond its
// budget.
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
  // Addresses without memory, for plans: everything is taken and counted as ever, and any access faults.
  bool dry = false;
  // Of one mlock call; some kernels hold a lock of the whole process for its length.
  uint64_t lock_piece_bytes = kGiB;
};

// One thread at a time.
class HostArena {
 public:
  // Every piece begins and ends on a multiple of this, which is all that direct I/O needs. There is no
  // coarser alignment for large pieces: the whole arena is in huge pages anyway, and so the cost of a piece
  // is known before.
  static constexpr uint64_t kAlignment = 4096;
  static constexpr uint64_t cost_bytes(uint64_t bytes) { return round_up(bytes, kAlignment); }

  // Maps, touches and locks everything, unless dry. Throws Error(capacity) when the system has not got it.
  HostArena(HostArenaOptions options, Log& log);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // `bytes` of zeros for the life of the arena, aligned to kAlignment; costs cost_bytes(bytes). Throws
  // Error(capacity) naming `purpose` and every other purpose when it does not fit.
  std::span<std::byte> take(uint64_t bytes, std::string_view purpose);

  // Gives all pages inside a piece of take(), or a part of one that consists of whole pages, back to the
  // system: nothing may touch them, nor may they be registered anywhere, until restore() has them again, as
  // zeros and locked like the rest. restore() throws Error(capacity) when the system has not got them, and
  // nothing has changed then.
  void release(std::span<std::byte> piece);
  void restore(std::span<std::byte> piece);

  struct LedgerEntry {
    std::string purpose;
    uint64_t bytes;  // with rounding
  };
  // In the order of take(), released or not. Invariant: the bytes add up to used_bytes() <= budget_bytes().
  std::span<const LedgerEntry> ledger() const { return ledger_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t budget_bytes() const { return mapping_.memory().size(); }

  bool is_dry() const { return dry_; }
  bool locked() const { return locked_; }
  // All of it, for registration with io_uring or a GPU; 2 MiB aligned.
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
