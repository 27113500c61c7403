#include <terrace/memory/eviction_policy.h>

#include <string>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

// When each chunk was last used, on a clock that ticks once per use. 0: never.
class LastUses {
 public:
  explicit LastUses(uint32_t chunk_count) : last_use_(chunk_count, 0) {}

  void note(ChunkId chunk) {
    TERRACE_ASSERT(index_of(chunk) < last_use_.size(), "no chunk " + std::to_string(index_of(chunk)));
    last_use_[index_of(chunk)] = ++now_;
  }

  // Candidates ascend, so keeping the first of equals keeps the lowest id.
  ChunkId oldest(std::span<const ChunkId> candidates) const {
    ChunkId oldest = candidates.front();
    for (ChunkId candidate : candidates) {
      if (last_use_[index_of(candidate)] < last_use_[index_of(oldest)]) oldest = candidate;
    }
    return oldest;
  }

 private:
  std::vector<uint64_t> last_use_;
  uint64_t now_ = 0;
};

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(uint32_t chunk_count) : uses_(chunk_count) {}

  PolicyKind kind() const override { return PolicyKind::lru; }
  void on_use(ChunkId chunk) override { uses_.note(chunk); }
  ChunkId choose_victim(std::span<const ChunkId> candidates, const EvictionContext&) override {
    TERRACE_ASSERT(!candidates.empty(), "a victim is asked for without candidates");
    return uses_.oldest(candidates);
  }

 private:
  LastUses uses_;
};

// L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966: the farthest next
// use leaves.
class OptPolicy final : public EvictionPolicy {
 public:
  explicit OptPolicy(uint32_t chunk_count) : uses_(chunk_count) {}

  PolicyKind kind() const override { return PolicyKind::opt; }
  void on_use(ChunkId chunk) override { uses_.note(chunk); }
  ChunkId choose_victim(std::span<const ChunkId> candidates, const EvictionContext& context) override {
    TERRACE_ASSERT(!candidates.empty(), "a victim is asked for without candidates");
    if (context.schedule.empty()) return uses_.oldest(candidates);
    ChunkId farthest = candidates.front();
    uint32_t farthest_distance = 0;
    for (ChunkId candidate : candidates) {
      const uint32_t distance = context.schedule.distance_to_next_use(candidate, context.position);
      if (distance > farthest_distance) {
        farthest = candidate;
        farthest_distance = distance;
      }
    }
    return farthest;
  }

 private:
  LastUses uses_;  // for a first step without a schedule
};

}  // namespace

std::string_view name_of(PolicyKind kind) {
  return kind == PolicyKind::opt ? "opt" : "lru";
}

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, uint32_t chunk_count) {
  if (kind == PolicyKind::opt) return std::make_unique<OptPolicy>(chunk_count);
  return std::make_unique<LruPolicy>(chunk_count);
}

}  // namespace terrace
