#include <terrace/sim/internal/cache_level.h>

#include <algorithm>

namespace terrace::sim {
namespace {

// What the homes in a tier leave to the other items.
std::vector<uint64_t> room_beside_homes(const SimSchedule& schedule, const SimMachine& machine) {
  std::vector<uint64_t> room;
  for (const SimTier& tier : machine.tiers) room.push_back(tier.capacity_bytes);
  for (const SimItem& item : schedule.items) {
    if (room[item.home_tier] != kUnboundedBytes) room[item.home_tier] -= item.bytes;
  }
  return room;
}

uint64_t occupied_bytes(const SimUse& use, uint32_t tier) {
  return tier < use.occupied_bytes.size() ? use.occupied_bytes[tier] : 0;
}

// How much of the items with homes below `tier` ever comes into each of the tiers down to it: an item is in
// none above those that use it.
std::vector<uint64_t> bytes_that_come(const SimSchedule& schedule, uint32_t tier) {
  std::vector<uint32_t> highest(schedule.items.size(), UINT32_MAX);
  for (const SimUse& use : schedule.uses) {
    for (const auto* list : {&use.reads, &use.changes, &use.makes}) {
      for (const uint32_t i : *list) highest[i] = std::min(highest[i], use.tier);
    }
  }
  std::vector<uint64_t> bytes(tier + size_t{1}, 0);
  for (size_t i = 0; i < highest.size(); ++i) {
    for (uint32_t t = highest[i]; t <= tier && schedule.items[i].home_tier > tier; ++t)
      bytes[t] += schedule.items[i].bytes;
  }
  return bytes;
}

class LevelBuilder {
 public:
  LevelBuilder(const SimSchedule& schedule, uint32_t tier) : schedule_(schedule), tier_(tier) {
    for (const SimItem& item : schedule.items) level_.item_bytes.push_back(item.bytes);
  }

  void begin_moment(uint32_t step, uint32_t use, bool holds, uint64_t capacity_bytes) {
    moment_ = {step, use, holds, capacity_bytes, {}};
  }
  void add(const std::vector<uint32_t>& items, TouchKind kind) {
    for (const uint32_t item : items) {
      if (schedule_.items[item].home_tier > tier_) moment_.touches.push_back({item, kind});
    }
  }
  void add_use(const SimUse& use, bool foreign) {
    add(use.reads, foreign ? TouchKind::foreign_read : TouchKind::read);
    add(use.changes, foreign ? TouchKind::foreign_change : TouchKind::change);
    add(use.makes, foreign ? TouchKind::foreign_make : TouchKind::make);
  }
  // A moment without touches matters only for its capacity.
  void end_moment(bool matters) {
    if (moment_.touches.empty() && !matters) return;
    std::stable_sort(moment_.touches.begin(), moment_.touches.end(),
                     [](const Touch& a, const Touch& b) { return a.item < b.item; });
    merge_touches();
    level_.moments.push_back(std::move(moment_));
  }
  CacheLevel take(uint32_t step_count) {
    level_.step_count = step_count;
    return std::move(level_);
  }

 private:
  // What passed through the tier above came up for it and went down changed: to this one it is one touch.
  void merge_touches() {
    std::vector<Touch>& touches = moment_.touches;
    for (size_t t = 1; t < touches.size(); ++t) {
      if (touches[t - 1].item == touches[t].item) touches[t - 1].kind = TouchKind::change;
    }
    const auto same = [](const Touch& a, const Touch& b) { return a.item == b.item; };
    touches.erase(std::unique(touches.begin(), touches.end(), same), touches.end());
  }

  const SimSchedule& schedule_;
  const uint32_t tier_;
  CacheLevel level_;
  Moment moment_ = {};
};

}  // namespace

CacheLevel level_below(const SimSchedule& schedule, const SimMachine& machine, uint32_t tier,
                       const std::vector<std::vector<Traffic>>& above_by_step) {
  const uint64_t room = room_beside_homes(schedule, machine)[tier];
  LevelBuilder builder(schedule, tier);
  for (uint32_t step = 0; step < above_by_step.size(); ++step) {
    const std::vector<Traffic>& above = above_by_step[step];
    size_t next = 0;
    for (uint32_t u = 0; u < schedule.uses.size(); ++u) {
      const SimUse& use = schedule.uses[u];
      const uint64_t occupied = occupied_bytes(use, tier);
      for (; next < above.size() && above[next].use == u; ++next) {
        builder.begin_moment(step, u, false, room - occupied);
        builder.add(above[next].loads, TouchKind::read);
        builder.add(above[next].writes, TouchKind::make);
        builder.add(above[next].writes_after, TouchKind::make);
        builder.end_moment(false);
      }
      builder.begin_moment(step, u, tier == 0 && use.tier == 0, room - occupied);
      if (use.tier >= tier) builder.add_use(use, use.tier > tier);
      builder.end_moment(occupied > 0);
    }
  }
  return builder.take(static_cast<uint32_t>(above_by_step.size()));
}

CacheLevel merged_level(const SimSchedule& schedule, const SimMachine& machine, uint32_t tier) {
  const std::vector<uint64_t> room = room_beside_homes(schedule, machine);
  const std::vector<uint64_t> useful = bytes_that_come(schedule, tier);
  LevelBuilder builder(schedule, tier);
  for (uint32_t u = 0; u < schedule.uses.size(); ++u) {
    const SimUse& use = schedule.uses[u];
    uint64_t capacity = 0, occupied = 0;
    for (uint32_t t = 0; t <= tier; ++t) {
      occupied += occupied_bytes(use, t);
      capacity += std::min(room[t] - occupied_bytes(use, t), useful[t]);
    }
    builder.begin_moment(0, u, use.tier == 0, capacity);
    builder.add_use(use, use.tier > tier);
    builder.end_moment(occupied > 0);
  }
  return builder.take(1);
}

}  // namespace terrace::sim
