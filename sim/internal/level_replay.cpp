#include <terrace/sim/internal/level_replay.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include <terrace/base/assert.h>

namespace terrace {

std::string_view name_of(SimDecisionKind kind) {
  constexpr std::array<std::string_view, 7> kNames = {"load",  "make",      "drop",      "write_back",
                                                      "flush", "stream_in", "stream_out"};
  return kNames[static_cast<size_t>(kind)];
}

namespace sim {
namespace {

using Kind = SimDecisionKind;

// After so many cycles (and about so many moments) without a repetition an average has to do.
constexpr uint32_t kMostCycles = 512, kLeastCycles = 8;
constexpr uint64_t kMostMoments = 2'000'000;

// For each touch: how the item is touched next, in the next cycle where this one has nothing more.
std::vector<std::vector<TouchKind>> next_kinds(const CacheLevel& level) {
  std::vector<std::vector<TouchKind>> next(level.moments.size());
  std::vector<TouchKind> following(level.item_bytes.size(), TouchKind::read);
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t m = level.moments.size(); m-- > 0;) {
      const std::vector<Touch>& touches = level.moments[m].touches;
      next[m].resize(touches.size());
      for (size_t t = 0; t < touches.size(); ++t) {
        next[m][t] = following[touches[t].item];
        following[touches[t].item] = touches[t].kind;
      }
    }
  }
  return next;
}

bool touches(const Moment& moment, uint32_t item) {
  return std::any_of(moment.touches.begin(), moment.touches.end(),
                     [&](const Touch& touch) { return touch.item == item && !is_foreign(touch.kind); });
}

class Replay {
 public:
  Replay(const CacheLevel& level, VictimRule* rule, const KeepPlan* plan)
      : level_(level),
        rule_(rule),
        plan_(plan),
        next_kinds_(next_kinds(level)),
        is_here_(level.item_bytes.size(), false),
        is_dirty_(level.item_bytes.size(), false),
        arrival_(level.item_bytes.size(), 0),
        next_kind_(level.item_bytes.size(), TouchKind::read) {}

  LevelRun run();

 private:
  void run_moment(uint32_t moment);
  void hold_together(const Moment& moment);
  void pass_through(const Touch& touch);
  void touch_foreign(const Touch& touch);
  bool admit(uint32_t item);
  void make_room(uint64_t bytes);
  void arrive(uint32_t item, Kind how);
  void leave(uint32_t item);
  void collect_candidates();
  void follow_plan(uint32_t moment);
  bool is_worthless(uint32_t item) const { return overwrites(next_kind_[item]); }
  void log(uint32_t item, Kind kind) { run_.decisions.push_back({cycle_, moment_, item, kind}); }
  std::vector<uint64_t> state() const;

  const CacheLevel& level_;
  VictimRule* const rule_;
  const KeepPlan* const plan_;
  const std::vector<std::vector<TouchKind>> next_kinds_;

  std::vector<bool> is_here_, is_dirty_;
  std::vector<uint64_t> arrival_;  // the number of its last arrival
  std::vector<TouchKind> next_kind_;
  uint64_t used_bytes_ = 0, arrival_count_ = 0;
  uint32_t cycle_ = 0, moment_ = 0;
  std::vector<uint32_t> candidates_;
  LevelRun run_;
};

// What decides everything that follows, when it is a cycle's end.
std::vector<uint64_t> Replay::state() const {
  std::vector<uint64_t> state;
  for (uint32_t item = 0; item < is_here_.size(); ++item) {
    if (is_here_[item]) state.push_back(uint64_t{item} * 2 + (is_dirty_[item] ? 1 : 0));
  }
  if (rule_ != nullptr && rule_->remembers_arrivals()) {
    std::sort(state.begin(), state.end(),
              [this](uint64_t a, uint64_t b) { return arrival_[a / 2] < arrival_[b / 2]; });
  }
  return state;
}

LevelRun Replay::run() {
  std::map<std::vector<uint64_t>, uint32_t> seen;
  const auto most = static_cast<uint32_t>(
      std::clamp<uint64_t>(kMostMoments / (level_.moments.size() + 1), kLeastCycles, kMostCycles));
  while (true) {
    for (uint32_t m = 0; m < level_.moments.size(); ++m) run_moment(m);
    const auto [before, is_new] = seen.emplace(state(), cycle_);
    ++cycle_;
    if (!is_new) {
      run_.first_cycle = before->second + 1;
      run_.cycle_count = cycle_ - run_.first_cycle;
      return std::move(run_);
    }
    if (cycle_ == most) {
      run_.steady = false;
      run_.first_cycle = most / 2;
      run_.cycle_count = most - run_.first_cycle;
      return std::move(run_);
    }
  }
}

void Replay::run_moment(uint32_t m) {
  const Moment& moment = level_.moments[m];
  moment_ = m;
  make_room(0);
  if (moment.holds) hold_together(moment);
  for (size_t t = 0; t < moment.touches.size(); ++t) {
    const Touch& touch = moment.touches[t];
    if (is_foreign(touch.kind)) {
      touch_foreign(touch);
      next_kind_[touch.item] = next_kinds_[m][t];
      continue;
    }
    next_kind_[touch.item] = next_kinds_[m][t];
    if (!moment.holds) {
      pass_through(touch);
      continue;
    }
    if (rule_ != nullptr) rule_->on_use(touch.item);
    if (makes_dirty(touch.kind)) is_dirty_[touch.item] = true;
  }
  if (plan_ != nullptr) follow_plan(m);
}

void Replay::hold_together(const Moment& moment) {
  uint64_t missing_bytes = 0;
  for (const Touch& touch : moment.touches) {
    if (!is_foreign(touch.kind) && !is_here_[touch.item]) missing_bytes += level_.item_bytes[touch.item];
  }
  make_room(missing_bytes);
  for (const Touch& touch : moment.touches) {
    if (is_foreign(touch.kind) || is_here_[touch.item]) continue;
    arrive(touch.item, needs_load(touch.kind) ? Kind::load : Kind::make);
  }
}

// Below the first tier a touch is satisfied by the tier, or past it.
void Replay::pass_through(const Touch& touch) {
  const bool stays = is_here_[touch.item] || admit(touch.item);
  if (!stays) {
    if (needs_load(touch.kind)) log(touch.item, Kind::stream_in);
    if (makes_dirty(touch.kind) && !is_worthless(touch.item)) log(touch.item, Kind::stream_out);
    return;
  }
  if (!is_here_[touch.item]) arrive(touch.item, needs_load(touch.kind) ? Kind::load : Kind::make);
  if (rule_ != nullptr) rule_->on_use(touch.item);
  if (makes_dirty(touch.kind)) is_dirty_[touch.item] = true;
}

void Replay::touch_foreign(const Touch& touch) {
  if (!is_here_[touch.item]) return;
  if (touch.kind != TouchKind::foreign_make && is_dirty_[touch.item]) {
    log(touch.item, Kind::flush);
    is_dirty_[touch.item] = false;
  }
  if (touch.kind == TouchKind::foreign_read) return;
  is_here_[touch.item] = is_dirty_[touch.item] = false;
  used_bytes_ -= level_.item_bytes[touch.item];
  log(touch.item, Kind::drop);
}

// A plan says what stays, so what it keeps has room (see follow_plan).
bool Replay::admit(uint32_t item) {
  if (plan_ != nullptr) {
    const std::vector<Touch>& touches = level_.moments[moment_].touches;
    for (size_t t = 0; t < touches.size(); ++t) {
      if (touches[t].item == item) return (*plan_)[moment_][t];
    }
  }
  const uint64_t bytes = level_.item_bytes[item], capacity = level_.moments[moment_].capacity_bytes;
  if (bytes > capacity) return false;
  while (used_bytes_ + bytes > capacity) {
    collect_candidates();
    if (rule_->may_bypass())
      candidates_.insert(std::lower_bound(candidates_.begin(), candidates_.end(), item), item);
    if (candidates_.empty()) return false;
    const uint32_t victim = rule_->choose(candidates_, moment_, cycle_ == 0);
    if (victim == item) return false;
    leave(victim);
  }
  return true;
}

void Replay::make_room(uint64_t bytes) {
  const Moment& moment = level_.moments[moment_];
  while (used_bytes_ + bytes > moment.capacity_bytes) {
    TERRACE_ASSERT(rule_ != nullptr, fmt::format("the plan does not fit moment {}", moment_));
    collect_candidates();
    if (candidates_.empty()) {
      TERRACE_ASSERT(!moment.holds, fmt::format("moment {} does not fit", moment_));
      for (uint32_t item = 0; item < is_here_.size(); ++item) {
        if (is_here_[item]) candidates_.push_back(item);
      }
    }
    leave(rule_->choose(candidates_, moment_, cycle_ == 0));
  }
}

void Replay::arrive(uint32_t item, Kind how) {
  is_here_[item] = true;
  arrival_[item] = ++arrival_count_;
  used_bytes_ += level_.item_bytes[item];
  log(item, how);
  if (rule_ != nullptr) rule_->on_arrival(item);
}

void Replay::leave(uint32_t item) {
  const bool copied = !is_worthless(item) && (is_dirty_[item] || (rule_ != nullptr && rule_->copies_clean()));
  log(item, copied ? Kind::write_back : Kind::drop);
  is_here_[item] = is_dirty_[item] = false;
  used_bytes_ -= level_.item_bytes[item];
}

void Replay::collect_candidates() {
  candidates_.clear();
  const std::vector<Touch>& touches = level_.moments[moment_].touches;
  size_t t = 0;
  for (uint32_t item = 0; item < is_here_.size(); ++item) {
    while (t < touches.size() && touches[t].item < item) ++t;
    const bool is_touched = t < touches.size() && touches[t].item == item && !is_foreign(touches[t].kind);
    if (is_here_[item] && !is_touched) candidates_.push_back(item);
  }
}

// What does not stay leaves right after its use.
void Replay::follow_plan(uint32_t m) {
  const std::vector<Touch>& touches = level_.moments[m].touches;
  for (size_t t = 0; t < touches.size(); ++t) {
    if (!is_foreign(touches[t].kind) && is_here_[touches[t].item] && !(*plan_)[m][t]) leave(touches[t].item);
  }
  TERRACE_ASSERT(used_bytes_ <= level_.moments[m].capacity_bytes,
                 fmt::format("the plan does not fit moment {}", m));
}

}  // namespace

LevelRun replay_rule(const CacheLevel& level, VictimRule& rule) {
  return Replay(level, &rule, nullptr).run();
}

LevelRun replay_plan(const CacheLevel& level, const KeepPlan& plan) {
  return Replay(level, nullptr, &plan).run();
}

std::vector<std::vector<Traffic>> traffic_of(const CacheLevel& level, const LevelRun& run) {
  std::vector<std::vector<Traffic>> steps(uint64_t{run.cycle_count} * level.step_count);
  const SimDecision* last = nullptr;
  for (const SimDecision& decision : run.decisions) {
    if (decision.cycle < run.first_cycle || (!comes_up(decision.kind) && !goes_down(decision.kind))) continue;
    const size_t step =
        size_t{decision.cycle - run.first_cycle} * level.step_count + level.moments[decision.moment].step;
    std::vector<Traffic>& traffic = steps[step];
    if (last == nullptr || last->cycle != decision.cycle || last->moment != decision.moment)
      traffic.push_back({level.moments[decision.moment].use, {}, {}, {}});
    last = &decision;
    if (comes_up(decision.kind)) traffic.back().loads.push_back(decision.item);
    if (!goes_down(decision.kind)) continue;
    const Moment& moment = level.moments[decision.moment];
    const bool is_used = moment.holds && touches(moment, decision.item);
    (is_used ? traffic.back().writes_after : traffic.back().writes).push_back(decision.item);
  }
  return steps;
}

}  // namespace sim
}  // namespace terrace
