#include <terrace/sim/internal/step_time.h>

#include <algorithm>
#include <map>
#include <utility>

namespace terrace::sim {
namespace {

// Periods that pass before one is measured.
constexpr uint64_t kWarmPeriods = 3;

class Timeline {
 public:
  Timeline(const SimSchedule& schedule, const SimMachine& machine, const std::vector<LinkSteps>& links,
           const std::vector<std::vector<uint32_t>>& leads, uint64_t steps)
      : schedule_(schedule),
        machine_(machine),
        leads_(leads),
        use_count_(schedule.uses.size()),
        ready_(steps * use_count_, 0),
        ahead_(steps * use_count_),
        up_free_(links.size(), 0),
        down_free_(links.size(), 0) {
    for (const LinkSteps& steps_of_link : links) {
      by_use_.emplace_back(steps_of_link.size() * use_count_);
      for (size_t s = 0; s < steps_of_link.size(); ++s) {
        for (const Traffic& traffic : steps_of_link[s])
          by_use_.back()[s * use_count_ + traffic.use].push_back(&traffic);
      }
    }
    for (uint64_t x = 0; x < ready_.size(); ++x) {
      const uint64_t lead = std::min<uint64_t>(lead_of(x), x);
      ahead_[x - lead].push_back(x);
    }
  }

  // The ends of all uses, in ns.
  std::vector<double> run() {
    std::vector<double> ends;
    double now = 0;
    for (uint64_t x = 0; x < ready_.size(); ++x) {
      for (const uint64_t wanted : ahead_[x]) {
        if (wanted == x) issue(x, now);
      }
      now = std::max(now, ready_[x]);
      for (const uint64_t wanted : ahead_[x]) {
        if (wanted != x) issue(wanted, now);
      }
      now += static_cast<double>(schedule_.uses[x % use_count_].compute_ns);
      write_after(x, now);
      ends.push_back(now);
    }
    return ends;
  }

 private:
  uint32_t lead_of(uint64_t x) const {
    if (schedule_.uses[x % use_count_].tier > 0) return machine_.prefetch_depth;
    return leads_[x / use_count_ % leads_.size()][x % use_count_];
  }

  const std::vector<const Traffic*>& traffic(size_t link, uint64_t x) const {
    return by_use_[link][x % by_use_[link].size()];
  }

  double move(double& free, double from, double bytes_per_second, size_t link, uint32_t item) const {
    const auto bytes = static_cast<double>(schedule_.items[item].bytes);
    free = std::max(free, from) + busy_ns(bytes, 1, bytes_per_second, machine_.links[link].latency_ns);
    return free;
  }
  double write(size_t link, double from, uint32_t item) {
    return move(down_free_[link], from, machine_.links[link].down_bytes_per_second, link, item);
  }
  double load(size_t link, double from, uint32_t item) {
    return move(up_free_[link], from, machine_.links[link].up_bytes_per_second, link, item);
  }

  // Everything that moves for use x before it.
  void issue(uint64_t x, double now) {
    std::map<uint32_t, double> written = {}, loaded = {};
    double room = room_;
    for (size_t link = 0; link < by_use_.size(); ++link) {
      for (const Traffic* t : traffic(link, x)) {
        for (const uint32_t item : t->writes) {
          if (link > 0 && goes_down_later(x, item)) continue;
          const auto above = written.find(item);
          written[item] = write(link, above == written.end() ? now : above->second, item);
          if (link == 0) room = std::max(room, written[item]);
        }
      }
    }
    for (size_t link = by_use_.size(); link-- > 0;) {
      for (const Traffic* t : traffic(link, x)) {
        for (const uint32_t item : t->loads) {
          const auto below = loaded.find(item);
          const double from = below == loaded.end() ? now : below->second;
          loaded[item] = load(link, link == 0 ? std::max(from, room) : from, item);
        }
      }
    }
    for (const auto& [item, done] : loaded) ready_[x] = std::max(ready_[x], done);
  }

  bool goes_down_later(uint64_t x, uint32_t item) const {
    for (const Traffic* t : traffic(0, x)) {
      if (std::find(t->writes_after.begin(), t->writes_after.end(), item) != t->writes_after.end())
        return true;
    }
    return false;
  }

  // What the use itself has changed and the plan has no place for.
  void write_after(uint64_t x, double now) {
    std::map<uint32_t, double> written;
    for (const Traffic* t : traffic(0, x)) {
      for (const uint32_t item : t->writes_after)
        room_ = std::max(room_, written[item] = write(0, now, item));
    }
    for (size_t link = 1; link < by_use_.size(); ++link) {
      for (const Traffic* t : traffic(link, x)) {
        for (const uint32_t item : t->writes) {
          const auto above = written.find(item);
          if (above != written.end()) above->second = write(link, above->second, item);
        }
      }
    }
  }

  const SimSchedule& schedule_;
  const SimMachine& machine_;
  const std::vector<std::vector<uint32_t>>& leads_;
  const uint64_t use_count_;
  std::vector<std::vector<std::vector<const Traffic*>>> by_use_;  // [link][step * uses + use]
  std::vector<double> ready_;                 // per use of all steps: when what it needs is there
  std::vector<std::vector<uint64_t>> ahead_;  // per use: for which uses transfers begin with it
  std::vector<double> up_free_, down_free_;
  double room_ = 0;  // when the first tier has given up all that was used and had no place
};

}  // namespace

double busy_ns(double bytes, double count, double bytes_per_second, uint64_t latency_ns) {
  return bytes / bytes_per_second * 1e9 + count * static_cast<double>(latency_ns);
}

std::vector<std::vector<uint32_t>> leads_of(const CacheLevel& level, const LevelRun& run, uint32_t use_count,
                                            uint32_t prefetch_depth) {
  const size_t count = level.moments.size(), total = count * run.cycle_count;
  std::vector<std::vector<uint32_t>> leads(run.cycle_count, std::vector<uint32_t>(use_count, 0));
  // What came in at each moment of the period, and what has to be in the tier there.
  std::vector<std::vector<uint32_t>> arrivals(total);
  std::vector<uint64_t> load_bytes(total, 0), needed(total, 0);
  for (const SimDecision& d : run.decisions) {
    if (d.cycle < run.first_cycle) continue;
    const size_t x = (d.cycle - run.first_cycle) * count + d.moment;
    if (d.kind == SimDecisionKind::load || d.kind == SimDecisionKind::make) arrivals[x].push_back(d.item);
    if (d.kind == SimDecisionKind::load) load_bytes[x] += level.item_bytes[d.item];
  }
  std::vector<std::vector<size_t>> touched(level.item_bytes.size());
  for (size_t x = 0; x < total; ++x) {
    for (const Touch& touch : level.moments[x % count].touches) {
      if (is_foreign(touch.kind)) continue;
      touched[touch.item].push_back(x);
      needed[x] += level.item_bytes[touch.item];
    }
  }
  for (uint32_t item = 0; item < touched.size(); ++item) {
    for (size_t i = 0; i < touched[item].size(); ++i) {
      const size_t from = touched[item][i];
      const bool is_last = i + 1 == touched[item].size();
      const size_t to = is_last ? touched[item][0] + total : touched[item][i + 1];
      const std::vector<uint32_t>& came = arrivals[to % total];
      if (std::find(came.begin(), came.end(), item) != came.end()) continue;
      for (size_t x = from + 1; x < to; ++x) needed[x % total] += level.item_bytes[item];
    }
  }
  for (size_t x = 0; x < total; ++x) {
    if (load_bytes[x] == 0) continue;
    const Moment& moment = level.moments[x % count];
    uint32_t& lead = leads[x / count][moment.use];
    for (size_t back = 1; back < total; ++back) {
      const size_t at = (x + total - back) % total;
      const Moment& earlier = level.moments[at % count];
      const auto cycles = static_cast<uint32_t>((x + total) / count - (x + total - back) / count);
      const uint32_t distance = cycles * use_count + moment.use - earlier.use;
      if (distance > prefetch_depth || needed[at] + load_bytes[x] > earlier.capacity_bytes) break;
      needed[at] += load_bytes[x];
      lead = distance;
    }
  }
  return leads;
}

double step_time_ns(const SimSchedule& schedule, const SimMachine& machine,
                    const std::vector<LinkSteps>& links, const std::vector<std::vector<uint32_t>>& leads,
                    uint64_t period_steps) {
  const uint64_t warm_steps = kWarmPeriods * period_steps;
  const std::vector<double> ends = Timeline(schedule, machine, links, leads, warm_steps + period_steps).run();
  return (ends.back() - ends[warm_steps * schedule.uses.size() - 1]) / static_cast<double>(period_steps);
}

}  // namespace terrace::sim
