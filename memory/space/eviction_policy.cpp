#include <terrace/memory/space/eviction_policy.h>

#include <array>
#include <string>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

constexpr const char* kNoCandidates = "a victim is asked for without candidates";

// Returns the candidate that `distance` puts farthest. Candidates ascend, so of equals it is the lowest.
template <typename Distance>
ChunkId farthest(std::span<const ChunkId> candidates, Distance distance) {
  TERRACE_ASSERT(!candidates.empty(), kNoCandidates);
  ChunkId farthest = candidates.front();
  uint32_t farthest_distance = distance(farthest);
  for (const ChunkId candidate : candidates.subspan(1)) {
    const uint32_t its = distance(candidate);
    if (its > farthest_distance) farthest = candidate, farthest_distance = its;
  }
  return farthest;
}

// LastUses: when each chunk was last used, on a clock that ticks with each use. 0 stands for never.
class LastUses {
 public:
  explicit LastUses(uint32_t chunk_count) : last_(chunk_count, 0) {}

  void note(ChunkId chunk) {
    TERRACE_ASSERT(index_of(chunk) < last_.size(), "no chunk " + std::to_string(index_of(chunk)));
    last_[index_of(chunk)] = ++now_;
  }

  // Candidates ascend, so keeping the first of equals keeps the lowest id.
  ChunkId oldest(std::span<const ChunkId> candidates) const {
    TERRACE_ASSERT(!candidates.empty(), kNoCandidates);
    ChunkId oldest = candidates.front();
    for (ChunkId candidate : candidates) {
      if (last_[index_of(candidate)] < last_[index_of(oldest)]) oldest = candidate;
    }
    return oldest;
  }

 private:
  std::vector<uint64_t> last_;
  uint64_t now_ = 0;
};

// The rule of L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966: the
// chunk with the farthest next use leaves.
class OptPolicy final : public EvictionPolicy {
 public:
  explicit OptPolicy(uint32_t chunk_count) : uses_(chunk_count) {}

  PolicyKind kind() const override { return PolicyKind::opt; }
  void on_use(ChunkId chunk) override { uses_.note(chunk); }
  ChunkId choose_victim(std::span<const ChunkId> candidates, const EvictionContext& context) override {
    if (context.schedule.empty()) return uses_.oldest(candidates);
    return farthest(candidates, [&](ChunkId chunk) {
      return context.schedule.distance_to_next_use(chunk, context.position);
    });
  }

 private:
  LastUses uses_;  // the first step has no schedule
};

// The rule of Colossal-AI 0.3, zero/gemini/placement_policy.py (AutoPlacementPolicy).
class GeminiPolicy final : public EvictionPolicy {
 public:
  PolicyKind kind() const override { return PolicyKind::gemini; }
  void on_use(ChunkId) override {}
  ChunkId choose_victim(std::span<const ChunkId> candidates, const EvictionContext& context) override {
    return farthest(candidates, [&](ChunkId chunk) {
      return context.schedule.empty() ? 0 : context.schedule.distance_within_step(chunk, context.position);
    });
  }
};

// The rule of PatrickStar, core/eviction_policy.py (LatestAccessChunkEvictionPolicy).
class PatrickStarPolicy final : public EvictionPolicy {
 public:
  PolicyKind kind() const override { return PolicyKind::patrickstar; }
  void on_use(ChunkId) override {}
  ChunkId choose_victim(std::span<const ChunkId> candidates, const EvictionContext& context) override {
    return farthest(candidates, [&](ChunkId chunk) {
      return context.schedule.empty() ? 0 : context.schedule.distance_across_steps(chunk, context.position);
    });
  }
};

constexpr std::array kKinds = {PolicyKind::opt, PolicyKind::gemini, PolicyKind::patrickstar};
constexpr std::array<std::string_view, kKinds.size()> kNames = {"opt", "gemini", "patrickstar"};

}  // namespace

std::string_view name_of(PolicyKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

std::span<const PolicyKind> policy_kinds() {
  return kKinds;
}

std::optional<PolicyKind> policy_from_name(std::string_view name) {
  for (const PolicyKind kind : kKinds) {
    if (name_of(kind) == name) return kind;
  }
  return std::nullopt;
}

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, uint32_t chunk_count) {
  switch (kind) {
    case PolicyKind::opt:
      return std::make_unique<OptPolicy>(chunk_count);
    case PolicyKind::gemini:
      return std::make_unique<GeminiPolicy>();
    case PolicyKind::patrickstar:
      return std::make_unique<PatrickStarPolicy>();
  }
  TERRACE_ASSERT(false, "there is no such policy");
  return nullptr;
}

}  // namespace terrace
