#include <terrace/sim/internal/keep_relaxation.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <terrace/sim/cost_flow.h>

namespace terrace::sim {
namespace {

// A saved byte is worth this much, so that fractions of it are whole numbers.
constexpr int64_t kScale = int64_t{1} << 20;

}  // namespace

KeepRelaxation::KeepRelaxation(const KeepProblem& problem)
    : problem_(problem),
      write_weight_(problem.arcs.size(), 1),
      first_weight_(problem.arcs.size(), 0.5),
      arc_value_(problem.arcs.size(), 0) {
  uint64_t unit = 0;
  for (uint32_t a = 0; a < problem.arcs.size(); ++a) {
    const KeepArc& arc = problem.arcs[a];
    unit = std::gcd(unit, arc.bytes);
    pieces_.push_back({a, arc.first, std::min(arc.last, problem.slots()), false});
    if (arc.last > problem.slots()) pieces_.push_back({a, 0, arc.last - problem.slots(), true});
  }
  unit_bytes_ = std::max<uint64_t>(unit, 1);
}

double KeepRelaxation::bound(std::span<const ArcFate> fates, uint32_t rounds) {
  double best = -1;
  for (uint32_t round = 0; round < rounds; ++round) {
    const double bytes = solve(fates);
    if (bytes > best) {
      best = bytes;
      best_shares_ = share_;
      best_disagreement_.assign(share_.size(), 0);
      for (size_t a = 0; a < share_.size(); ++a) {
        if (second_share_[a] < 0) continue;
        best_disagreement_[a] = std::abs(share_[a] - second_share_[a]);
        best_shares_[a] = (share_[a] + second_share_[a]) / 2;
      }
    }
    if (std::isinf(bytes)) break;
    improve(fates, 0.5 / (1.0 + 0.25 * round));
  }
  return best;
}

// What arcs that are kept for certain leave of each slot, in units; false when that is nothing.
bool KeepRelaxation::take_kept(std::span<const ArcFate> fates, std::vector<int64_t>& room) const {
  for (const uint64_t bytes : problem_.free_bytes) room.push_back(static_cast<int64_t>(bytes / unit_bytes_));
  for (const Piece& piece : pieces_) {
    if (fates[piece.arc] != ArcFate::kept) continue;
    const auto units = static_cast<int64_t>(problem_.arcs[piece.arc].bytes / unit_bytes_);
    for (uint32_t s = piece.first; s < piece.last; ++s) {
      if ((room[s] -= units) < 0) return false;
    }
  }
  return true;
}

// Sets what a unit of each open arc saves, and what is lost already.
void KeepRelaxation::spread_writes(std::span<const ArcFate> fates) {
  paid_bytes_ = static_cast<double>(problem_.fixed_bytes);
  for (size_t a = 0; a < fates.size(); ++a) {
    arc_value_[a] = kScale;
    if (fates[a] == ArcFate::dropped) paid_bytes_ += static_cast<double>(problem_.arcs[a].bytes);
  }
  for (const KeepWrite& write : problem_.writes) {
    double weight = 0;
    uint32_t open = 0;
    bool is_paid = false;
    for (const uint32_t a : write.arcs) {
      is_paid = is_paid || fates[a] == ArcFate::dropped;
      if (fates[a] == ArcFate::open) weight += write_weight_[a], ++open;
    }
    if (is_paid) paid_bytes_ += static_cast<double>(write.bytes);
    if (is_paid || open == 0) continue;
    int64_t left = kScale;
    for (const uint32_t a : write.arcs) {
      if (fates[a] != ArcFate::open) continue;
      const double part = weight > 0 ? write_weight_[a] / weight : 1.0 / open;
      const int64_t value =
          --open == 0 ? left : std::min(left, static_cast<int64_t>(part * static_cast<double>(kScale)));
      arc_value_[a] += value;
      left -= value;
    }
  }
}

int64_t KeepRelaxation::piece_value(const Piece& piece) const {
  const int64_t value = arc_value_[piece.arc];
  const KeepArc& arc = problem_.arcs[piece.arc];
  if (arc.last <= problem_.slots()) return value;
  const auto first = static_cast<int64_t>(first_weight_[piece.arc] * static_cast<double>(value));
  return piece.is_second ? value - first : first;
}

double KeepRelaxation::solve(std::span<const ArcFate> fates) {
  const uint32_t slots = problem_.slots();
  std::vector<int64_t> room;
  share_.assign(fates.size(), 0);
  second_share_.assign(fates.size(), -1);
  if (!take_kept(fates, room)) return std::numeric_limits<double>::infinity();
  spread_writes(fates);
  CostFlow flow(slots + 1);
  for (uint32_t s = 0; s <= slots; ++s) {
    flow.set_supply(s, (s < slots ? room[s] : 0) - (s > 0 ? room[s - 1] : 0));
    if (s < slots) flow.add_edge(s, s + 1, std::numeric_limits<int64_t>::max() / 4, 0);
  }
  double lost = paid_bytes_;
  std::vector<uint32_t> edge_of(pieces_.size());
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const Piece& piece = pieces_[p];
    if (fates[piece.arc] != ArcFate::open) continue;
    const auto units = static_cast<int64_t>(problem_.arcs[piece.arc].bytes / unit_bytes_);
    edge_of[p] = flow.add_edge(piece.first, piece.last, units, -piece_value(piece));
  }
  flow.solve();  // always possible: everything may stay empty
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const Piece& piece = pieces_[p];
    const bool is_open = fates[piece.arc] == ArcFate::open;
    double share = fates[piece.arc] == ArcFate::kept ? 1 : 0;
    if (is_open) {
      const auto units = static_cast<int64_t>(problem_.arcs[piece.arc].bytes / unit_bytes_);
      const int64_t kept = flow.flow_of(edge_of[p]);
      share = static_cast<double>(kept) / static_cast<double>(units);
      lost += static_cast<double>(units - kept) * static_cast<double>(unit_bytes_) *
              (static_cast<double>(piece_value(piece)) / static_cast<double>(kScale));
    }
    (piece.is_second ? second_share_ : share_)[piece.arc] = share;
  }
  return lost;
}

// Moves worth to where the parts of one thing disagree.
void KeepRelaxation::improve(std::span<const ArcFate> fates, double step) {
  for (const KeepWrite& write : problem_.writes) {
    double weight = 0;
    for (const uint32_t a : write.arcs) {
      if (fates[a] != ArcFate::open) continue;
      write_weight_[a] = std::max(write_weight_[a] + step * (1 - share_[a]), 0.0);
      weight += write_weight_[a];
    }
    for (const uint32_t a : write.arcs) {
      if (fates[a] == ArcFate::open && weight > 0) write_weight_[a] /= weight;
    }
  }
  for (size_t a = 0; a < fates.size(); ++a) {
    if (fates[a] != ArcFate::open || second_share_[a] < 0) continue;
    first_weight_[a] = std::clamp(first_weight_[a] + 0.5 * step * (second_share_[a] - share_[a]), 0.0, 1.0);
  }
}

}  // namespace terrace::sim
