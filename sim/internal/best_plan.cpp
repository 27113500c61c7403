// The best plan, by branch and bound.
#include <algorithm>
#include <cmath>

#include <terrace/sim/internal/keep_search.h>

namespace terrace::sim {
namespace {

constexpr uint32_t kRootRounds = 150;
constexpr uint32_t kNodeRounds = 4;
constexpr double kWhole = 1e-9;

class Branching {
 public:
  Branching(const KeepProblem& problem, uint32_t most_nodes)
      : problem_(problem),
        relaxation_(problem),
        fates_(problem.arcs.size(), ArcFate::open),
        nodes_left_(most_nodes) {}

  FoundPlan run() {
    relaxation_.bound(fates_, kRootRounds);
    best_ = good_plan(problem_, relaxation_.shares());
    visit(kRootRounds);
    best_.is_best = !out_of_nodes_;
    return std::move(best_);
  }

 private:
  void visit(uint32_t rounds) {
    if (nodes_left_ == 0) {
      out_of_nodes_ = true;
      return;
    }
    --nodes_left_;
    const double least = relaxation_.bound(fates_, rounds);
    // Plans differ by whole units.
    const auto unit = static_cast<double>(relaxation_.unit_bytes());
    if (least > static_cast<double>(best_.bytes) - unit + 1e-6 * unit) return;
    const std::vector<double> shares(relaxation_.shares().begin(), relaxation_.shares().end());
    take_if_whole(shares);
    const uint32_t arc = most_undecided(shares);
    if (arc == kNoWrite || static_cast<double>(best_.bytes) - unit + 1e-6 * unit < least) return;
    const ArcFate likely = shares[arc] >= 0.5 ? ArcFate::kept : ArcFate::dropped;
    for (const ArcFate fate : {likely, likely == ArcFate::kept ? ArcFate::dropped : ArcFate::kept}) {
      fates_[arc] = fate;
      visit(kNodeRounds);
    }
    fates_[arc] = ArcFate::open;
  }

  void take_if_whole(const std::vector<double>& shares) {
    std::vector<bool> kept(shares.size());
    for (size_t a = 0; a < shares.size(); ++a) kept[a] = shares[a] > 1 - kWhole;
    if (!fits(problem_, kept)) return;
    const uint64_t bytes = bytes_of(problem_, kept);
    if (bytes < best_.bytes) best_ = {kept, bytes, false};
  }

  // The open arc that the relaxation is least sure of; where it is sure of all, one whose write is not what
  // it thinks. Nothing when no arc is open.
  uint32_t most_undecided(const std::vector<double>& shares) const {
    uint32_t chosen = kNoWrite;
    double most = -1;
    for (uint32_t a = 0; a < shares.size(); ++a) {
      if (fates_[a] != ArcFate::open) continue;
      double doubt = std::min(shares[a], 1 - shares[a]) + relaxation_.disagreement(a);
      if (problem_.arcs[a].write != kNoWrite) doubt += 0.1 * write_doubt(a, shares);
      doubt *= static_cast<double>(problem_.arcs[a].bytes);
      if (doubt > most) most = doubt, chosen = a;
    }
    return chosen;
  }

  double write_doubt(uint32_t arc, const std::vector<double>& shares) const {
    double least = 1, greatest = 0;
    for (const uint32_t a : problem_.writes[problem_.arcs[arc].write].arcs) {
      least = std::min(least, shares[a]);
      greatest = std::max(greatest, shares[a]);
    }
    return greatest - least;
  }

  const KeepProblem& problem_;
  KeepRelaxation relaxation_;
  std::vector<ArcFate> fates_;
  FoundPlan best_;
  uint32_t nodes_left_;
  bool out_of_nodes_ = false;
};

}  // namespace

FoundPlan best_plan(const KeepProblem& problem, uint32_t most_nodes) {
  if (problem.arcs.empty()) return {{}, problem.fixed_bytes, true};
  return Branching(problem, most_nodes).run();
}

}  // namespace terrace::sim
