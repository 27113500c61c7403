#include <terrace/sim/sim_schedule.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

constexpr std::array<std::string_view, 4> kRoles = {"param", "grad", "state", "activation"};

// So that sums stay within 64 bits.
constexpr uint64_t kMostBytes = uint64_t{1} << 60;

[[noreturn]] void refuse(const std::string& subject, const std::string& reason, const std::string& advice) {
  throw Error(ErrorKind::config, {"cannot simulate", subject, reason, advice});
}

void check_list(const SimSchedule& schedule, const SimUse& use, const std::vector<uint32_t>& list,
                std::string_view what) {
  if (std::adjacent_find(list.begin(), list.end(), std::greater_equal<uint32_t>()) != list.end())
    refuse(use.operation, fmt::format("the items that it {} are not ascending", what), "name each once");
  if (!list.empty() && list.back() >= schedule.items.size()) {
    refuse(use.operation, fmt::format("it {} item {} of {}", what, list.back(), schedule.items.size()),
           "describe the item first");
  }
  for (const uint32_t i : list) {
    if (schedule.items[i].home_tier >= use.tier) continue;
    refuse(use.operation,
           fmt::format("it computes in tier {}, below the home of \"{}\", tier {}", use.tier,
                       schedule.items[i].name, schedule.items[i].home_tier),
           "give the item a home there or below");
  }
}

void check_use(const SimSchedule& schedule, const SimUse& use) {
  check_list(schedule, use, use.reads, "reads");
  check_list(schedule, use, use.changes, "changes");
  check_list(schedule, use, use.makes, "makes");
  std::vector<uint32_t> all = use.reads;
  all.insert(all.end(), use.changes.begin(), use.changes.end());
  all.insert(all.end(), use.makes.begin(), use.makes.end());
  std::sort(all.begin(), all.end());
  const auto twice = std::adjacent_find(all.begin(), all.end());
  if (twice != all.end()) {
    refuse(use.operation, fmt::format("\"{}\" is in two of its lists", schedule.items[*twice].name),
           "what is changed is read too, what is made is not: name it in one of them");
  }
}

uint64_t needed_bytes(const SimSchedule& schedule, const SimUse& use, uint32_t tier) {
  uint64_t bytes = tier < use.occupied_bytes.size() ? use.occupied_bytes[tier] : 0;
  // Only the first tier needs room for what it computes with: below, it goes through staging.
  if (tier > 0 || use.tier > 0) return bytes;
  for (const auto* list : {&use.reads, &use.changes, &use.makes}) {
    for (const uint32_t i : *list) bytes += schedule.items[i].home_tier == 0 ? 0 : schedule.items[i].bytes;
  }
  return bytes;
}

void check_room(const SimSchedule& schedule, const SimTier& where, uint32_t tier, uint64_t homes_bytes) {
  const SimUse* largest = &schedule.uses.front();
  uint64_t most = 0;
  for (const SimUse& use : schedule.uses) {
    const uint64_t bytes = homes_bytes + needed_bytes(schedule, use, tier);
    if (bytes > most) largest = &use, most = bytes;
  }
  if (most <= where.capacity_bytes) return;
  throw Error(ErrorKind::capacity,
              {fmt::format("tier {} has no room for", where.name), largest->operation,
               fmt::format("it needs {} of {}", format_bytes(most), format_bytes(where.capacity_bytes)),
               fmt::format("give tier {} at least {} ({} bytes)", where.name, format_bytes(most), most)});
}

}  // namespace

std::string_view name_of(SimRole role) {
  return kRoles[static_cast<size_t>(role)];
}

std::optional<SimRole> role_from_name(std::string_view name) {
  const auto found = std::find(kRoles.begin(), kRoles.end(), name);
  if (found == kRoles.end()) return std::nullopt;
  return static_cast<SimRole>(found - kRoles.begin());
}

void check_schedule(const SimSchedule& schedule) {
  uint64_t all_bytes = 0;
  for (const SimItem& item : schedule.items) {
    if (item.bytes == 0) refuse(item.name, "it has no bytes", "leave it out");
    if (item.bytes > kMostBytes || (all_bytes += item.bytes) > kMostBytes)
      refuse(item.name, "with it all items are more than 2^60 bytes", "describe something smaller");
  }
  if (schedule.uses.empty()) refuse(schedule.name, "it has no uses", "describe a step");
  for (const SimUse& use : schedule.uses) {
    check_use(schedule, use);
    for (const uint64_t bytes : use.occupied_bytes) {
      if (bytes > kMostBytes) refuse(use.operation, "something occupies more than 2^60 bytes", "take less");
    }
  }
}

void check_simulation(const SimSchedule& schedule, const SimMachine& machine) {
  check_schedule(schedule);
  if (machine.tiers.size() < 2 || machine.links.size() + 1 != machine.tiers.size()) {
    refuse(schedule.name,
           fmt::format("there are {} tiers and {} links", machine.tiers.size(), machine.links.size()),
           "give two tiers or more, and a link between each two");
  }
  if (machine.tiers.back().capacity_bytes != kUnboundedBytes)
    refuse(machine.tiers.back().name, "the last tier is bounded", "leave its capacity out");
  for (size_t tier = 0; tier + 1 < machine.tiers.size(); ++tier) {
    if (machine.tiers[tier].capacity_bytes > kMostBytes)
      refuse(machine.tiers[tier].name, "it has more than 2^60 bytes", "give less");
  }
  for (const SimLink& link : machine.links) {
    if (!(link.up_bytes_per_second > 0) || !(link.down_bytes_per_second > 0))
      refuse("a link", "it moves nothing", "give both directions a bandwidth");
  }
  std::vector<uint64_t> homes_bytes(machine.tiers.size(), 0);
  for (const SimItem& item : schedule.items) {
    if (item.home_tier >= machine.tiers.size()) {
      refuse(item.name,
             fmt::format("its home is tier {}, and there are {}", item.home_tier, machine.tiers.size()),
             "give a tier below");
    }
    homes_bytes[item.home_tier] += item.bytes;
  }
  for (uint32_t tier = 0; tier + 1 < machine.tiers.size(); ++tier)
    check_room(schedule, machine.tiers[tier], tier, homes_bytes[tier]);
}

}  // namespace terrace
