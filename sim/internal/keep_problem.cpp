#include <terrace/sim/internal/keep_problem.h>

#include <algorithm>

namespace terrace::sim {
namespace {

struct ItemTouch {
  uint32_t moment, touch;
  TouchKind kind;
};

// What happens between two touches of the level's own tier.
struct Gap {
  bool keepable = false;     // the next touch can find what this one left
  bool must_load = false;    // the next touch needs it from below, whatever is kept
  bool flushed = false;      // what is newer here has to go down before the next own touch
  bool overwritten = false;  // nobody will ever read what this touch left
};

class ProblemBuilder {
 public:
  explicit ProblemBuilder(const CacheLevel& level) : level_(level) {
    problem_.step_count = level.step_count;
    const size_t count = level.moments.size();
    for (size_t m = 0; m < count; ++m) {
      const Moment& moment = level.moments[m];
      uint64_t held = 0;
      for (const Touch& touch : moment.touches) {
        if (moment.holds && !is_foreign(touch.kind)) held += level.item_bytes[touch.item];
      }
      problem_.free_bytes.push_back(moment.capacity_bytes - held);
      problem_.free_bytes.push_back(
          std::min(moment.capacity_bytes, level.moments[(m + 1) % count].capacity_bytes));
    }
  }

  KeepProblem build() {
    std::vector<std::vector<ItemTouch>> touches(level_.item_bytes.size());
    for (uint32_t m = 0; m < level_.moments.size(); ++m) {
      const std::vector<Touch>& here = level_.moments[m].touches;
      for (uint32_t t = 0; t < here.size(); ++t) touches[here[t].item].push_back({m, t, here[t].kind});
    }
    for (uint32_t item = 0; item < touches.size(); ++item) add_item(item, touches[item]);
    return std::move(problem_);
  }

 private:
  // Adds the arcs of an item, then the writes over them.
  void add_item(uint32_t item, const std::vector<ItemTouch>& touches) {
    std::vector<ItemTouch> own;
    std::vector<Gap> gaps;
    for (size_t i = 0; i < touches.size(); ++i) {
      if (is_foreign(touches[i].kind)) continue;
      own.push_back(touches[i]);
      gaps.push_back(gap_after(touches, i));
    }
    std::vector<uint32_t> arc_of(own.size(), kNoWrite);
    for (size_t i = 0; i < own.size(); ++i) {
      const uint64_t bytes = level_.item_bytes[item];
      if (gaps[i].must_load) problem_.fixed_bytes += bytes;
      if (!gaps[i].keepable) continue;
      const ItemTouch& next = own[(i + 1) % own.size()];
      const uint32_t first = 2 * own[i].moment + 1;
      uint32_t last = 2 * next.moment;
      if (last < first) last += problem_.slots();
      arc_of[i] = static_cast<uint32_t>(problem_.arcs.size());
      problem_.arcs.push_back({item, own[i].moment, own[i].touch, bytes, first, last, kNoWrite});
    }
    for (size_t i = 0; i < own.size(); ++i) {
      if (makes_dirty(own[i].kind)) add_write(item, own, gaps, arc_of, i);
    }
  }

  Gap gap_after(const std::vector<ItemTouch>& touches, size_t from) const {
    Gap gap;
    bool stale = false, read_below = false;
    for (size_t i = 1; i <= touches.size(); ++i) {
      const ItemTouch& next = touches[(from + i) % touches.size()];
      if (next.kind == TouchKind::foreign_make || next.kind == TouchKind::make)
        gap.overwritten = gap.overwritten || (!read_below && !stale);
      if (next.kind == TouchKind::foreign_read || next.kind == TouchKind::foreign_change)
        gap.flushed = gap.flushed || !stale;
      if (next.kind == TouchKind::foreign_read || next.kind == TouchKind::foreign_change) read_below = true;
      if (next.kind == TouchKind::foreign_change || next.kind == TouchKind::foreign_make) stale = true;
      if (is_foreign(next.kind)) continue;
      gap.keepable = needs_load(next.kind) && !stale;
      gap.must_load = needs_load(next.kind) && stale;
      break;
    }
    return gap;
  }

  // What is written at own touch `from`, and which arcs have to be kept for it never to go down.
  void add_write(uint32_t item, const std::vector<ItemTouch>& own, const std::vector<Gap>& gaps,
                 const std::vector<uint32_t>& arc_of, size_t from) {
    KeepWrite write{level_.item_bytes[item], {}};
    for (size_t i = 0; i < own.size(); ++i) {
      const size_t at = (from + i) % own.size();
      if (gaps[at].flushed) {
        problem_.fixed_bytes += write.bytes;
        return;
      }
      if (gaps[at].overwritten) break;
      write.arcs.push_back(arc_of[at]);
      if (makes_dirty(own[(at + 1) % own.size()].kind)) break;
    }
    if (write.arcs.empty()) return;
    for (const uint32_t arc : write.arcs)
      problem_.arcs[arc].write = static_cast<uint32_t>(problem_.writes.size());
    problem_.writes.push_back(std::move(write));
  }

  const CacheLevel& level_;
  KeepProblem problem_;
};

}  // namespace

bool KeepProblem::equal_and_clean() const {
  for (const KeepArc& arc : arcs) {
    if (arc.bytes != arcs.front().bytes) return false;
  }
  return writes.empty();
}

KeepProblem keep_problem(const CacheLevel& level) {
  return ProblemBuilder(level).build();
}

uint64_t bytes_of(const KeepProblem& problem, const std::vector<bool>& kept) {
  uint64_t bytes = problem.fixed_bytes;
  for (size_t a = 0; a < problem.arcs.size(); ++a) bytes += kept[a] ? 0 : problem.arcs[a].bytes;
  for (const KeepWrite& write : problem.writes) {
    const bool all_kept =
        std::all_of(write.arcs.begin(), write.arcs.end(), [&](uint32_t arc) { return kept[arc]; });
    bytes += all_kept ? 0 : write.bytes;
  }
  return bytes;
}

bool fits(const KeepProblem& problem, const std::vector<bool>& kept) {
  std::vector<uint64_t> used(problem.slots(), 0);
  for (size_t a = 0; a < problem.arcs.size(); ++a) {
    if (!kept[a]) continue;
    for (uint32_t s = problem.arcs[a].first; s < problem.arcs[a].last; ++s)
      used[s % problem.slots()] += problem.arcs[a].bytes;
  }
  for (uint32_t s = 0; s < problem.slots(); ++s) {
    if (used[s] > problem.free_bytes[s]) return false;
  }
  return true;
}

KeepPlan plan_of(const CacheLevel& level, const KeepProblem& problem, const std::vector<bool>& kept) {
  KeepPlan plan;
  for (const Moment& moment : level.moments) plan.emplace_back(moment.touches.size(), false);
  for (size_t a = 0; a < problem.arcs.size(); ++a) {
    if (kept[a]) plan[problem.arcs[a].moment][problem.arcs[a].touch] = true;
  }
  return plan;
}

}  // namespace terrace::sim
