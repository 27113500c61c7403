// KeepRelaxation: less than any placement can move, by a flow of least cost. Memory is a current through the
// slots of a cycle, an arc a branch of it that may carry a part of its item; so sizes are relaxed to shares.
// Two more things are relaxed, each with multipliers that are improved from round to round: what a write
// saves is spread over its arcs, and an arc over the cycle's end is two that need not agree. The last also
// makes it a bound for placements that change from step to step: their average satisfies it.
//
// What it keeps is no plan; it says which arcs are worth keeping.
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

  // Bytes of a cycle that no plan with these fates goes below; infinite where none fits. After `rounds`
  // rounds, of which the best counts; multipliers stay for the next call.
  double bound(std::span<const ArcFate> fates, uint32_t rounds);
  // Of the best round: how much of each arc is kept, 0 to 1. Of an arc over the cycle's end, the mean.
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
  std::vector<double> write_weight_;  // per arc: its part of what its write saves
  std::vector<double> first_weight_;  // per arc over the cycle's end: the part of its first piece
  // Of the last solve.
  std::vector<int64_t> arc_value_;  // saved per unit, in parts of kScale
  double paid_bytes_ = 0;           // lost to what is dropped for certain
  std::vector<double> share_, second_share_;
  std::vector<double> best_shares_, best_disagreement_;
};

}  // namespace terrace::sim
