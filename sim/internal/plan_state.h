// PlanState: a plan in the making, with the bytes that it uses of each slot and the bytes that it moves.
// Adding and removing arcs updates the sums; the caller asks before whether an arc fits.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/sim/internal/keep_problem.h>

namespace terrace::sim {

class PlanState {
 public:
  // Begins with no arc kept. `problem` outlives this object.
  explicit PlanState(const KeepProblem& problem)
      : problem_(&problem),
        kept_(problem.arcs.size(), false),
        used_(problem.slots(), 0),
        missing_(problem.writes.size()),
        bytes_(bytes_of(problem, kept_)) {
    for (size_t w = 0; w < missing_.size(); ++w)
      missing_[w] = static_cast<uint32_t>(problem.writes[w].arcs.size());
  }

  bool is_kept(uint32_t arc) const { return kept_[arc]; }
  const std::vector<bool>& kept() const { return kept_; }
  uint64_t bytes() const { return bytes_; }

  bool has_room(uint32_t arc) const {
    const KeepArc& a = problem_->arcs[arc];
    for (uint32_t s = a.first; s < a.last; ++s) {
      const uint32_t slot = s % problem_->slots();
      if (used_[slot] + a.bytes > problem_->free_bytes[slot]) return false;
    }
    return true;
  }
  bool is_overfull(uint32_t slot) const { return used_[slot] > problem_->free_bytes[slot]; }

  // The bytes by which the plan moves less when the arc is kept, if it is not, or more when it is removed, if
  // it is kept.
  uint64_t worth(uint32_t arc) const {
    const KeepArc& a = problem_->arcs[arc];
    if (a.write == kNoWrite || missing_[a.write] != (kept_[arc] ? 0u : 1u)) return a.bytes;
    return a.bytes + problem_->writes[a.write].bytes;
  }

  void add(uint32_t arc) {
    bytes_ -= worth(arc);
    change(arc, true);
  }
  void remove(uint32_t arc) {
    bytes_ += worth(arc);
    change(arc, false);
  }

 private:
  void change(uint32_t arc, bool kept) {
    const KeepArc& a = problem_->arcs[arc];
    kept_[arc] = kept;
    if (a.write != kNoWrite) missing_[a.write] += kept ? -1 : 1;
    for (uint32_t s = a.first; s < a.last; ++s) {
      uint64_t& used = used_[s % problem_->slots()];
      used = kept ? used + a.bytes : used - a.bytes;
    }
  }

  const KeepProblem* problem_;
  std::vector<bool> kept_;
  std::vector<uint64_t> used_;
  std::vector<uint32_t> missing_;  // per write: arcs that are not kept
  uint64_t bytes_;
};

}  // namespace terrace::sim
