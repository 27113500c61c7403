// KeepRelaxation: a lower bound of the bytes that any placement moves, by a flow of least cost. Memory is a
// flow through the slots of a cycle, and an arc is a branch of it that may carry a part of its item; so sizes
// are relaxed to shares. Two more things are relaxed, each with multipliers that improve from round to round:
// the bytes that a write saves are spread over its arcs, and an arc over the cycle's end becomes two that
// need not agree. The second also makes it a bound for placements that change from step to step: their
// average satisfies it.
//
// The shares that it keeps are no plan; they show which arcs are worth keeping.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/sim/internal/keep_problem.h>

namespace terrace::sim {

enum class ArcFate : uint8_t { open, kept, dropped };

class KeepRelaxation {
 public:
  // `problem` outlives it.
  explicit KeepRelaxation(const KeepProblem& problem);

  // Returns bytes of a cycle that no plan with these fates goes below; infinite where none fits. The best of
  // `rounds` rounds counts; multipliers stay for the next call.
  double bound(std::span<const ArcFate> fates, uint32_t rounds);
  // How much of each arc the best round keeps, 0 to 1; for an arc over the cycle's end, the mean of its two
  // parts.
  std::span<const double> shares() const { return best_shares_; }
  // How far apart the two parts of an arc over the cycle's end are.
  double disagreement(uint32_t arc) const { return best_disagreement_[arc]; }
  uint64_t unit_bytes() const { return unit_bytes_; }

 private:
  struct Piece {
    uint32_t arc, first, last;
    bool is_second;
  };

  double solve(std::span<const ArcFate> fates);
  bool take_kept(std::span<const ArcFate> fates, std::vector<int64_t>& room) const;
  void spread_writes(std::span<const ArcFate> fates);
  int64_t piece_value(const Piece& piece) const;
  void improve(std::span<const ArcFate> fates, double step);

  const KeepProblem& problem_;
  uint64_t unit_bytes_ = 1;
  std::vector<Piece> pieces_;
  std::vector<double> write_weight_;  // per arc: its part of the bytes that its write saves
  std::vector<double> first_weight_;  // per arc over the cycle's end: the part of its first piece
  // The following are of the last solve.
  std::vector<int64_t> arc_value_;  // saved per unit, in parts of kScale
  double paid_bytes_ = 0;           // bytes moved for any shares of the open arcs
  std::vector<double> share_, second_share_;
  std::vector<double> best_shares_, best_disagreement_;
};

}  // namespace terrace::sim
