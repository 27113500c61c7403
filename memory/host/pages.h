// Mappings of anonymous memory and of bare address space, and the move of pages between addresses. It knows
// pages only, and must never leave a hole behind: addresses once mapped here belong to their owner until the
// end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <terrace/base/units.h>

namespace terrace {

inline constexpr uint64_t kHugePageBytes = 2 * kMiB;

// The page size of the running system: a power of two, at least 4 KiB.
uint64_t page_bytes();

// Owns one mapping, aligned to kHugePageBytes. Move-only; empty by default.
class PageMapping {
 public:
  PageMapping() = default;
  // Reserves address space in which any access faults. Throws Error(device).
  static PageMapping inaccessible(uint64_t bytes);
  // Maps zeros, physically there when this returns. Huge pages are asked for when `huge` is true, and refused
  // when it is false; where there are several memory nodes, pages are spread over them. Throws
  // Error(capacity) naming `purpose`.
  static PageMapping populated(uint64_t bytes, bool huge, std::string_view purpose);

  // Maps zeros that take no memory before populate_pages() brings them. Throws Error(capacity) naming
  // `purpose`.
  static PageMapping unpopulated(uint64_t bytes, bool huge, std::string_view purpose);

  PageMapping(PageMapping&& other) noexcept;
  PageMapping& operator=(PageMapping&& other) noexcept;
  ~PageMapping();

  std::span<std::byte> memory() const { return memory_; }

 private:
  explicit PageMapping(std::span<std::byte> memory) : memory_(memory) {}
  static PageMapping zeros(uint64_t bytes, bool huge, std::string_view purpose, int flags);
  std::span<std::byte> memory_;
};

// Gives whole pages of a mapping back to the system; they are zeros when they are touched again.
void discard_pages(std::span<std::byte> memory);
// Makes all of these pages physically there again. Throws Error(capacity) naming `purpose`.
void populate_pages(std::span<std::byte> memory, std::string_view purpose);

// How pages leave their addresses.
enum class MoveMethod : uint8_t {
  keep_source,  // MREMAP_DONTUNMAP: the source stays mapped until it is made inaccessible; no hole at any
                // moment
  refill_hole,  // for Linux before 5.7 and some sandboxes: the source is unmapped for a moment and taken
                // again; it is an Error(device) when another thread's mmap took it meanwhile
};
// The method that this kernel supports, found out by trying.
MoveMethod probe_move_method();

// Moves the pages of [source, source + bytes), one mapping of its own, to `destination` and replaces the
// mapping there. Afterwards any access to the source faults. Throws Error(device) when the system refuses.
void move_pages(std::byte* source, std::byte* destination, uint64_t bytes, MoveMethod method);

}  // namespace terrace
