// The replay of a decision log: written apart from the replay that makes logs, so that one shows the other's
// mistakes.
#include <fmt/format.h>

#include <terrace/base/assert.h>
#include <terrace/sim/internal/level_replay.h>

namespace terrace::sim {
namespace {

using Kind = SimDecisionKind;

class LogReplay {
 public:
  LogReplay(const CacheLevel& level, const LevelRun& run)
      : level_(level), run_(run), here_(level.item_bytes.size(), false) {}

  LevelTotals totals() {
    for (uint32_t cycle = 0; cycle < run_.first_cycle + run_.cycle_count; ++cycle) {
      for (uint32_t m = 0; m < level_.moments.size(); ++m) run_moment(cycle, m);
    }
    TERRACE_ASSERT(next_ == run_.decisions.size(), fmt::format("decision {} is out of order", next_));
    return totals_;
  }

 private:
  void run_moment(uint32_t cycle, uint32_t m) {
    const Moment& moment = level_.moments[m];
    std::vector<uint32_t> passed;  // through staging
    // Everything that leaves while something else is used leaves before it; the use's own items leave after.
    std::vector<bool> was_here(moment.touches.size());
    for (size_t t = 0; t < moment.touches.size(); ++t) was_here[t] = here_[moment.touches[t].item];
    for (; next_ < run_.decisions.size() && run_.decisions[next_].cycle == cycle &&
           run_.decisions[next_].moment == m;
         ++next_) {
      apply(run_.decisions[next_]);
      if (run_.decisions[next_].kind == Kind::load || run_.decisions[next_].kind == Kind::make ||
          run_.decisions[next_].kind == Kind::stream_in || run_.decisions[next_].kind == Kind::stream_out)
        passed.push_back(run_.decisions[next_].item);
      TERRACE_ASSERT(!moment.holds || !is_in(run_.decisions[next_]) || used_ <= moment.capacity_bytes,
                     fmt::format("moment {} of cycle {} does not fit", m, cycle));
    }
    TERRACE_ASSERT(used_ <= moment.capacity_bytes, fmt::format("moment {} of cycle {} is full", m, cycle));
    for (size_t t = 0; t < moment.touches.size(); ++t) {
      const Touch& touch = moment.touches[t];
      if (is_foreign(touch.kind) || touch.kind == TouchKind::make) continue;
      bool found = was_here[t];
      for (const uint32_t item : passed) found = found || item == touch.item;
      TERRACE_ASSERT(found,
                     fmt::format("item {} is not there at moment {} of cycle {}", touch.item, m, cycle));
    }
  }

  static bool is_in(const SimDecision& decision) {
    return decision.kind == Kind::load || decision.kind == Kind::make;
  }

  void apply(const SimDecision& decision) {
    const uint64_t bytes = level_.item_bytes[decision.item];
    const bool counts = decision.cycle >= run_.first_cycle;
    const bool arrives = is_in(decision);
    const bool leaves = decision.kind == Kind::drop || decision.kind == Kind::write_back;
    if (arrives || leaves) {
      TERRACE_ASSERT(here_[decision.item] == leaves,
                     fmt::format("item {} cannot {}", decision.item, name_of(decision.kind)));
      here_[decision.item] = arrives;
      used_ = arrives ? used_ + bytes : used_ - bytes;
    }
    if (!counts) return;
    if (comes_up(decision.kind)) totals_.load_bytes += bytes, ++totals_.load_count;
    if (goes_down(decision.kind)) totals_.write_bytes += bytes, ++totals_.write_count;
    if (decision.kind == Kind::drop) ++totals_.clean_drop_count;
  }

  const CacheLevel& level_;
  const LevelRun& run_;
  std::vector<bool> here_;
  uint64_t used_ = 0;
  size_t next_ = 0;
  LevelTotals totals_;
};

}  // namespace

LevelTotals replay_log(const CacheLevel& level, const LevelRun& run) {
  return LogReplay(level, run).totals();
}

}  // namespace terrace::sim
