// HostSlots: equal pieces of the host arena, one for a chunk of one role, for life.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/memory/host/host_arena.h>

namespace terrace {

// `count` slots of `slot_bytes` carved from the arena at once, each aligned for direct I/O.
inline std::vector<std::byte*> carve_slots(HostArena& arena, uint64_t slot_bytes, uint32_t count,
                                           std::string_view purpose) {
  std::vector<std::byte*> slots;
  if (count == 0) return slots;
  const std::span<std::byte> memory = arena.take(slot_bytes * count, purpose);
  slots.reserve(count);
  for (uint32_t s = 0; s < count; ++s) slots.push_back(memory.data() + s * slot_bytes);
  return slots;
}

// Which of `count` things are kept when only `kept` can be, spread evenly so that work on kept ones fills the
// pauses between the others.
constexpr bool is_kept(uint32_t index, uint32_t kept, uint32_t count) {
  return static_cast<uint64_t>(index + 1) * kept / count != static_cast<uint64_t>(index) * kept / count;
}

}  // namespace terrace
