// Host slots: equal pieces of the host arena. Each belongs to one chunk and one role for the life of the run.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/memory/host/host_arena.h>

namespace terrace {

// Carves `count` slots of `slot_bytes` from the arena at once, each aligned for direct I/O.
inline std::vector<std::byte*> carve_slots(HostArena& arena, uint64_t slot_bytes, uint32_t count,
                                           std::string_view purpose) {
  std::vector<std::byte*> slots;
  if (count == 0) return slots;
  const std::span<std::byte> memory = arena.take(slot_bytes * count, purpose);
  slots.reserve(count);
  for (uint32_t s = 0; s < count; ++s) slots.push_back(memory.data() + s * slot_bytes);
  return slots;
}

// Says whether the item `index` of `count` is kept when only `kept` can be. Kept items are spread evenly, so
// that work on them fills the pauses between the others.
constexpr bool is_kept(uint32_t index, uint32_t kept, uint32_t count) {
  return static_cast<uint64_t>(index + 1) * kept / count != static_cast<uint64_t>(index) * kept / count;
}

}  // namespace terrace
