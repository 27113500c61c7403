// A good plan, by exchanging arcs.
#include <algorithm>
#include <numeric>

#include <terrace/sim/internal/keep_search.h>
#include <terrace/sim/internal/plan_state.h>

namespace terrace::sim {
namespace {

// How many arcs times slots are looked at before the search ends: about a second of one core.
constexpr uint64_t kWork = 400'000'000;
// A problem with more arcs times slots than this gets no exchange of arcs, which looks at them again and
// again.
constexpr uint64_t kMostCovering = 20'000'000;
constexpr uint32_t kMostDisturbances = 1000;
constexpr uint64_t kSeed = 0x9e3779b97f4a7c15;

class Search {
 public:
  Search(const KeepProblem& problem, std::span<const double> shares)
      : problem_(problem), shares_(shares.begin(), shares.end()), covering_(problem.slots()) {
    for (const KeepArc& arc : problem.arcs) pass_work_ += arc.last - arc.first;
    pass_work_ += problem.arcs.size();
    if (pass_work_ > kMostCovering) work_ = kWork;
    for (uint32_t a = 0; a < problem.arcs.size() && work_ < kWork; ++a) {
      for (uint32_t s = problem.arcs[a].first; s < problem.arcs[a].last; ++s)
        covering_[s % problem.slots()].push_back(a);
    }
  }

  FoundPlan run() {
    PlanState best(problem_);
    for (const bool by_share : {true, false}) {
      sort_order(by_share);
      PlanState plan(problem_);
      refill(plan);
      exchange(plan);
      if (plan.bytes() < best.bytes()) best = plan;
    }
    sort_order(true);
    for (uint32_t i = 0; i < kMostDisturbances && work_ < kWork; ++i) {
      PlanState plan = best;
      disturb(plan);
      exchange(plan);
      if (plan.bytes() <= best.bytes()) best = plan;
    }
    return {best.kept(), best.bytes(), false};
  }

 private:
  // The order in which refill() takes arcs: most likely first.
  void sort_order(bool by_share) {
    order_.resize(problem_.arcs.size());
    std::iota(order_.begin(), order_.end(), 0u);
    // What is saved for each slot that is taken.
    const auto density = [&](uint32_t a) {
      const KeepArc& arc = problem_.arcs[a];
      const double writes =
          arc.write == kNoWrite ? 0 : 1.0 / static_cast<double>(problem_.writes[arc.write].arcs.size());
      return (1 + writes) / (arc.last - arc.first);
    };
    std::stable_sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      if (by_share && shares_[a] != shares_[b]) return shares_[a] > shares_[b];
      return density(a) > density(b);
    });
  }

  void refill(PlanState& plan) {
    for (const uint32_t a : order_) {
      if (!plan.is_kept(a) && plan.has_room(a)) plan.add(a);
    }
    work_ += pass_work_;
  }

  // Keeps `arcs` and lets others go until it fits: of those that cover the first slot that is overfull,
  // always the one that saves least for what it takes. Nothing where it cannot fit.
  bool force(PlanState& plan, std::span<const uint32_t> arcs) {
    for (const uint32_t a : arcs) plan.add(a);
    for (const uint32_t a : arcs) {
      for (uint32_t s = problem_.arcs[a].first; s < problem_.arcs[a].last; ++s) {
        while (plan.is_overfull(s % problem_.slots())) {
          const uint32_t victim = cheapest(plan, s % problem_.slots(), arcs);
          if (victim == kNoWrite) return false;
          plan.remove(victim);
        }
      }
    }
    return true;
  }

  uint32_t cheapest(const PlanState& plan, uint32_t slot, std::span<const uint32_t> spared) {
    uint32_t cheapest = kNoWrite;
    double least = 0;
    work_ += covering_[slot].size();
    for (const uint32_t a : covering_[slot]) {
      if (!plan.is_kept(a) || std::find(spared.begin(), spared.end(), a) != spared.end()) continue;
      const KeepArc& arc = problem_.arcs[a];
      const double loss = static_cast<double>(plan.worth(a)) /
                          (static_cast<double>(arc.bytes) * static_cast<double>(arc.last - arc.first));
      if (cheapest == kNoWrite || loss < least) cheapest = a, least = loss;
    }
    return cheapest;
  }

  // Tries to keep each arc that is not kept, alone and with what shares its write, until nothing helps.
  void exchange(PlanState& plan) {
    bool improved = true;
    while (improved && work_ < kWork) {
      improved = false;
      for (uint32_t a = 0; a < problem_.arcs.size() && work_ < kWork; ++a) {
        if (plan.is_kept(a)) continue;
        improved = try_with(plan, {a}) || improved;
        if (plan.is_kept(a) || problem_.arcs[a].write == kNoWrite) continue;
        std::vector<uint32_t> together;
        for (const uint32_t other : problem_.writes[problem_.arcs[a].write].arcs) {
          if (!plan.is_kept(other)) together.push_back(other);
        }
        if (together.size() > 1) improved = try_with(plan, together) || improved;
      }
    }
  }

  bool try_with(PlanState& plan, std::vector<uint32_t> arcs) {
    PlanState changed = plan;
    work_ += problem_.slots() + problem_.arcs.size() / 8;
    if (!force(changed, arcs)) return false;
    refill(changed);
    if (changed.bytes() >= plan.bytes()) return false;
    plan = std::move(changed);
    return true;
  }

  // Lets go what covers one slot and keeps another arc instead.
  void disturb(PlanState& plan) {
    const uint32_t slot = random() % problem_.slots();
    for (const uint32_t a : covering_[slot]) {
      if (plan.is_kept(a) && random() % 2 == 0) plan.remove(a);
    }
    const auto arc = static_cast<uint32_t>(random() % problem_.arcs.size());
    if (!plan.is_kept(arc)) {
      PlanState changed = plan;
      const uint32_t one[] = {arc};
      if (force(changed, one)) plan = std::move(changed);
    }
    for (uint32_t i = 0; i < 8; ++i) {
      const size_t at = random() % order_.size(), other = random() % order_.size();
      std::swap(order_[at], order_[other]);
    }
    refill(plan);
  }

  uint64_t random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_ >> 11;
  }

  const KeepProblem& problem_;
  const std::vector<double> shares_;
  std::vector<std::vector<uint32_t>> covering_;  // per slot
  std::vector<uint32_t> order_;
  uint64_t pass_work_ = 0, work_ = 0, random_ = kSeed;
};

}  // namespace

FoundPlan good_plan(const KeepProblem& problem, std::span<const double> shares) {
  if (problem.arcs.empty()) return {{}, problem.fixed_bytes, true};
  return Search(problem, shares).run();
}

}  // namespace terrace::sim
