#include <terrace/sim/internal/belady.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <terrace/base/assert.h>

namespace terrace::sim {
namespace {

constexpr uint32_t kMostBeladyCycles = 4096;

struct KeptArc {
  uint64_t last;  // counted from the first cycle
  uint32_t arc;
  auto operator<=>(const KeptArc&) const = default;
};

}  // namespace

CycleAverage belady_optimum(const KeepProblem& problem) {
  TERRACE_ASSERT(problem.equal_and_clean(), "there are sizes or writes");
  if (problem.arcs.empty()) return {problem.fixed_bytes, 1, true};
  const uint64_t bytes = problem.arcs.front().bytes;
  std::vector<std::vector<uint32_t>> beginning(problem.slots());
  for (uint32_t a = 0; a < problem.arcs.size(); ++a)
    beginning[problem.arcs[a].first % problem.slots()].push_back(a);

  std::set<KeptArc> kept;
  std::map<std::vector<uint64_t>, std::pair<uint32_t, uint64_t>> seen;  // state -> cycles and drops before it
  uint64_t dropped = 0;
  for (uint32_t cycle = 0; cycle < kMostBeladyCycles; ++cycle) {
    const uint64_t base = uint64_t{cycle} * problem.slots();
    std::vector<uint64_t> state;
    for (const KeptArc& arc : kept) state.push_back((arc.last - base) << 32 | arc.arc);
    const auto [before, is_new] = seen.emplace(state, std::make_pair(cycle, dropped));
    if (!is_new) {
      const uint32_t cycles = cycle - before->second.first;
      return {problem.fixed_bytes * cycles + (dropped - before->second.second) * bytes, cycles, true};
    }
    for (uint32_t s = 0; s < problem.slots(); ++s) {
      while (!kept.empty() && kept.begin()->last <= base + s) kept.erase(kept.begin());
      for (const uint32_t a : beginning[s])
        kept.insert({base + problem.arcs[a].last - problem.arcs[a].first + s, a});
      while (kept.size() > problem.free_bytes[s] / bytes) {
        kept.erase(std::prev(kept.end()));
        ++dropped;
      }
    }
  }
  return {problem.fixed_bytes * kMostBeladyCycles + dropped * bytes, kMostBeladyCycles, false};
}

}  // namespace terrace::sim
