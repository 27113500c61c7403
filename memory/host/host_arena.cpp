#include <terrace/memory/host/host_arena.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace {
namespace {

std::string memlock_limit_text() {
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "RLIMIT_MEMLOCK is unknown";
  return "RLIMIT_MEMLOCK is " +
         (limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_bytes(limit.rlim_cur));
}

PageMapping map_budget(const HostArenaOptions& options) {
  const uint64_t bytes = options.budget_bytes / HostArena::kAlignment * HostArena::kAlignment;
  if (bytes == 0) return {};
  if (options.dry) return PageMapping::inaccessible(bytes);
  const bool huge = bytes >= kHugePageBytes;
  return options.is_empty_at_first ? PageMapping::unpopulated(bytes, huge, "the host tier")
                                   : PageMapping::populated(bytes, huge, "the host tier");
}

}  // namespace

HostArena::HostArena(HostArenaOptions options, Log& log) : dry_(options.dry), mapping_(map_budget(options)) {
  if (!options.lock_pages || dry_ || memory().empty()) return;
  if (options.is_empty_at_first) {
    locked_ = true;  // as far as restore() brings pages
  } else {
    lock_pages(options.lock_piece_bytes, log);
  }
}

HostArena::~HostArena() = default;

// The arena is locked in pieces, because some kernels hold a lock of the whole process for the length of one
// call. It is locked as a whole or not at all: half an arena would only use up the limit that io_uring's
// registered buffers count against too. The calls go through syscall(), because the sanitizers replace
// mlock() by a function that does nothing.
void HostArena::lock_pages(uint64_t piece_bytes, Log& log) {
  for (uint64_t offset = 0; offset < memory().size(); offset += piece_bytes) {
    const auto piece = memory().subspan(offset, std::min<uint64_t>(piece_bytes, memory().size() - offset));
    if (syscall(SYS_mlock, piece.data(), piece.size()) == 0) continue;
    const int error = errno;
    if (offset > 0) syscall(SYS_munlock, memory().data(), offset);
    const Wording line =
        "cannot lock the " + format_bytes(memory().size()) +
        " of the host tier in memory: " + system_reason(error).text + ", " + memlock_limit_text() +
        "; it works unlocked, transfers may be slower; raise the limit with `ulimit -l unlimited`, or set " +
        Option::lock_host_memory + " to false";
    log.warning(line.in(log.door()));
    return;
  }
  locked_ = true;
}

std::span<std::byte> HostArena::take(uint64_t bytes, std::string_view purpose) {
  const uint64_t free_bytes = budget_bytes() - used_bytes_;
  if (bytes > free_bytes) {  // free_bytes is a multiple of kAlignment, so what fits also fits rounded up
    std::string taken;
    for (const LedgerEntry& entry : ledger_)
      taken += (taken.empty() ? "" : ", ") + entry.purpose + " " + format_bytes(entry.bytes);
    throw Error(
        ErrorKind::capacity,
        {"cannot take host memory for", std::string(purpose),
         std::to_string(bytes) + " bytes (" + format_bytes(bytes) + ") are needed, and of the budget of " +
             std::to_string(budget_bytes()) + " bytes (" + format_bytes(budget_bytes()) + ") " +
             std::to_string(free_bytes) + " are free" + (taken.empty() ? "" : " (taken: " + taken + ")"),
         "give the host a larger budget"});
  }
  const std::span<std::byte> piece = memory().subspan(used_bytes_, bytes);
  ledger_.push_back({std::string(purpose), cost_bytes(bytes)});
  used_bytes_ += cost_bytes(bytes);
  return piece;
}

void HostArena::release(std::span<std::byte> piece) {
  if (dry_) return;
  if (locked_) syscall(SYS_munlock, piece.data(), piece.size());
  discard_pages(piece);
}

void HostArena::restore(std::span<std::byte> piece) {
  if (dry_) return;
  try {
    populate_pages(piece, "the host tier");
  } catch (...) {
    discard_pages(piece);
    throw;
  }
  // If the limit has become smaller meanwhile, this piece works unlocked, as the whole arena would.
  if (locked_) syscall(SYS_mlock, piece.data(), piece.size());
}

}  // namespace terrace
