// EvictionPolicy: which chunk leaves a full tier. Deterministic: ties break by chunk id, the lowest leaves. A
// policy only chooses: whether a chunk may leave at all is its caller's knowledge, shown by the candidates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/memory/space/schedule.h>

namespace terrace {

enum class PolicyKind : uint8_t { opt, lru, fifo, mru, gemini, patrickstar };
std::span<const PolicyKind> policy_kinds();
std::string_view name_of(PolicyKind kind);
std::optional<PolicyKind> policy_from_name(std::string_view name);

// What a policy may look at when it decides.
struct EvictionContext {
  const Schedule& schedule;  // empty during a first step nobody has announced
  uint32_t position;         // of the use in progress; kNever before the first use of a step
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual PolicyKind kind() const = 0;
  // A chunk comes into the tier. It may be long before its first use there.
  virtual void on_arrival(ChunkId chunk) = 0;
  // A resident chunk is used, in the order of uses.
  virtual void on_use(ChunkId chunk) = 0;
  // One of `candidates` (not empty, ascending). Changes nothing. Linear in the candidates.
  virtual ChunkId choose_victim(std::span<const ChunkId> candidates, const EvictionContext& context) = 0;
};

// opt: the chunk whose next use is farthest, wrapping into the next step; one that the schedule never names
// before all others (Belady's rule; with an empty schedule, least recently used). lru: the chunk whose last
// use is longest ago; one never used before all others. fifo: the chunk that arrived longest ago, whatever
// its uses. mru: the chunk whose last use is the latest; one never used after all others.
//
// The rules of two other memory managers, as comparisons. gemini, Colossal-AI's automatic placement: the
// chunk whose next use in the rest of the step is farthest, and all that have none there are alike (by
// default Gemini keeps a tenth of the memory free; here the tier is whole). patrickstar: the chunk whose next
// use is farthest, wrapping into the next step even where it is renewed in between. Both record a first step,
// in which the lowest chunk leaves.
std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, uint32_t chunk_count);

}  // namespace terrace
