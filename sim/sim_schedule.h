// SimSchedule: one training step as a simulation sees it, from any program or made up: items with sizes and
// homes, the uses of the step in their order, and the machine that replays it. It knows neither files nor
// models, and decides nothing.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

enum class SimRole : uint8_t { param, grad, state, activation };
std::string_view name_of(SimRole role);
std::optional<SimRole> role_from_name(std::string_view name);

// An item moves as a whole: a chunk, or a tensor.
struct SimItem {
  std::string name;
  uint64_t bytes = 0;
  SimRole role = SimRole::param;
  // The home is the tier that always has room for the item, and the lowest tier that it is ever in. Tier 0
  // computes.
  uint32_t home_tier = 1;

  bool operator==(const SimItem&) const = default;
};

// A use is one operation. The three lists are positions in SimSchedule::items, ascending, and no item is in
// two of them.
struct SimUse {
  std::string operation;  // the key: the same operation has the same key in every step
  uint32_t tier = 0;      // where it computes
  std::vector<uint32_t> reads;
  std::vector<uint32_t> changes;  // read and written
  std::vector<uint32_t> makes;  // written from end to end without being read: the bytes before are worthless
  uint64_t compute_ns = 0;
  // The bytes of each tier that something else (activations, staging) takes meanwhile; 0 for tiers beyond the
  // end.
  std::vector<uint64_t> occupied_bytes;

  bool operator==(const SimUse&) const = default;
};

struct SimSchedule {
  std::string name;
  std::vector<SimItem> items;
  std::vector<SimUse> uses;  // of one step; the next step is the same

  bool operator==(const SimSchedule&) const = default;
};

inline constexpr uint64_t kUnboundedBytes = std::numeric_limits<uint64_t>::max();

struct SimTier {
  std::string name;
  uint64_t capacity_bytes = kUnboundedBytes;
};

// A link between a tier and the one below it. Both directions work at once.
struct SimLink {
  double up_bytes_per_second = 0;
  double down_bytes_per_second = 0;
  uint64_t latency_ns = 0;  // latency of each transfer
};

struct SimMachine {
  std::vector<SimTier> tiers;  // tier 0 first; the last is unbounded
  std::vector<SimLink> links;  // one fewer: link k joins the tiers k and k + 1
  // How many uses ahead of its own a transfer may begin, where there is room; 0: when it is asked for.
  uint32_t prefetch_depth = 0;
};

// Throws Error(config) when the schedule cannot be replayed: lists that are out of order or name no item,
// items used below their home, tiers that no link reaches; and Error(capacity) naming tier, use and bytes of
// the largest need that does not fit.
void check_simulation(const SimSchedule& schedule, const SimMachine& machine);
// Checks the conditions that do not depend on the machine.
void check_schedule(const SimSchedule& schedule);

}  // namespace terrace
