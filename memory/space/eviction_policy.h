// EvictionPolicy: chooses the chunk that leaves a full tier. It is deterministic: among equals the lowest
// chunk id leaves. A policy only chooses: its caller decides which chunks may leave at all, and gives them as
// candidates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/memory/space/schedule.h>

namespace terrace {

enum class PolicyKind : uint8_t { opt, gemini, patrickstar };
std::span<const PolicyKind> policy_kinds();
std::string_view name_of(PolicyKind kind);
std::optional<PolicyKind> policy_from_name(std::string_view name);

// The facts that a policy may look at when it decides.
struct EvictionContext {
  const Schedule& schedule;  // empty during a first step that was not announced
  uint32_t position;         // that of the use in progress; kNever before the first use of a step
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual PolicyKind kind() const = 0;
  // A resident chunk is used, in the order of uses.
  virtual void on_use(ChunkId chunk) = 0;
  // Returns one of `candidates` (not empty, ascending) and changes nothing. Linear in the candidates.
  virtual ChunkId choose_victim(std::span<const ChunkId> candidates, const EvictionContext& context) = 0;
};

// opt evicts the chunk whose next use is farthest, wrapping into the next step, and before all others one
// that the schedule never names (Belady's rule). With an empty schedule it evicts the chunk whose last use is
// longest ago, and before all others one that was never used.
//
// Two rules of other memory managers serve as comparisons. gemini, Colossal-AI's automatic placement, evicts
// the chunk whose next use in the rest of the step is farthest; all that have none there are alike (by
// default Gemini keeps a tenth of the memory free; here the tier is whole). patrickstar evicts the chunk
// whose next use is farthest, wrapping into the next step even where the chunk is renewed in between. Both
// record a first step, in which the lowest chunk leaves.
std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, uint32_t chunk_count);

}  // namespace terrace
