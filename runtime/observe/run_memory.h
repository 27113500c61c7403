// RunMemory: what a run holds in each tier, for the log of its steps, its status and its page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <terrace/memory/device/device.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/config/json/json_fields.h>

namespace terrace {

struct TierSummary {
  std::string name;            // "device"
  uint64_t budget_bytes = 0;   // 0: bounded by the drive alone
  std::string origin;          // origin of the budget; empty: not known
  uint64_t planned_bytes = 0;  // 0: not known
  uint64_t used_bytes = 0;
  uint64_t peak_bytes = 0;
  std::vector<TierUse> uses;
};

// Commits of the whole run, those after its last step included.
struct CommitTotals {
  uint64_t count = 0;
  uint64_t write_bytes = 0;  // states that were newer in host memory
  uint64_t manifest_bytes = 0;
};

struct RunMemory {
  std::vector<TierSummary> tiers;
  std::vector<NvmePathUse> paths;
  TrafficBound bound;                   // mean of one step (LeastTraffic)
  std::optional<CommitTotals> commits;  // nothing: the run keeps none
  uint64_t process_bytes = 0;           // the process as the system counts it (Pss)
};

// The memory of a run. The references outlive whatever it is given to.
struct JobMemory {
  Offloader& offloader;
  const Device& device;  // the offloader's
  uint64_t device_budget_bytes = 0;
};
// What the tiers hold, between two steps.
std::vector<TierSummary> tiers_of(const JobMemory& memory);
// The same with all else but the bound. It asks the system, which takes milliseconds.
RunMemory memory_of(const JobMemory& memory);

// --- As JSON ---

void write_json(JsonWriter& json, const TrafficBound& bound);
bool read_json(const JsonNode& node, TrafficBound& bound);

constexpr auto json_fields(const TierUse&) {
  return std::tuple(json_field("purpose", &TierUse::purpose), json_field("bytes", &TierUse::bytes));
}
constexpr auto json_fields(const TierSummary&) {
  using T = TierSummary;
  return std::tuple(json_field("name", &T::name), json_field("budget_bytes", &T::budget_bytes),
                    later_json_field("origin", &T::origin),
                    later_json_field("planned_bytes", &T::planned_bytes),
                    json_field("used_bytes", &T::used_bytes), json_field("peak_bytes", &T::peak_bytes),
                    later_json_field("uses", &T::uses));
}
constexpr auto json_fields(const NvmePathUse&) {
  return std::tuple(json_field("path", &NvmePathUse::path), json_field("bytes", &NvmePathUse::bytes),
                    json_field("busy_ns", &NvmePathUse::busy_ns));
}
constexpr auto json_fields(const CommitTotals&) {
  return std::tuple(json_field("count", &CommitTotals::count),
                    json_field("write_bytes", &CommitTotals::write_bytes),
                    json_field("manifest_bytes", &CommitTotals::manifest_bytes));
}
constexpr auto json_fields(const RunMemory&) {
  using M = RunMemory;
  return std::tuple(json_field("tiers", &M::tiers), json_field("paths", &M::paths),
                    json_field("least_bytes", &M::bound), json_field("commits", &M::commits),
                    json_field("process_bytes", &M::process_bytes));
}

}  // namespace terrace
