// SimPolicy: the policies that a simulation compares. They are Terrace's own (memory/eviction_policy.h), and
// the rules of two other memory managers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace terrace {

// opt: a plan of what stays between which uses, made of the whole step with sizes and the cost of what has to
// be written back, or Belady's rule with wrap-around and bypass where that moves no more.
// lru, fifo, mru: as in memory/eviction_policy.h, without bypass.
// gemini: Colossal-AI's automatic placement. A first step is recorded, in which the lowest item leaves; then
// the item whose next use in the rest of the step is farthest, and all that have none there are alike. (Here
// it has the whole tier; by default Gemini keeps a tenth free.)
// patrickstar: moments of a first step are recorded, in which the lowest item leaves; then the item whose
// next moment is the latest, across the step's end. Its chunks have one place, so what leaves is always
// copied.
enum class SimPolicy : uint8_t { opt, lru, fifo, mru, gemini, patrickstar };
std::span<const SimPolicy> sim_policies();
std::string_view name_of(SimPolicy policy);
std::optional<SimPolicy> sim_policy_from_name(std::string_view name);

}  // namespace terrace
