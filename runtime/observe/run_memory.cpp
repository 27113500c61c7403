#include <terrace/runtime/observe/run_memory.h>

#include <algorithm>

#include <terrace/memory/host/machine.h>
#include <terrace/offload/watch/counter_table.h>
#include <terrace/runtime/planning/device_ledger.h>

namespace terrace {
namespace {

// Of several arenas with one purpose, the sum.
std::vector<TierUse> joined(const std::vector<TierUse>& ledger) {
  std::vector<TierUse> uses;
  for (const TierUse& use : ledger) {
    const auto known = std::ranges::find(uses, use.purpose, &TierUse::purpose);
    known == uses.end() ? uses.push_back(use) : static_cast<void>(known->bytes += use.bytes);
  }
  return uses;
}

TierSummary files_of(const MemoryPlan& plan, uint64_t taken) {
  return {.name = "nvme",
          .origin = "what is free on the path",
          .planned_bytes = taken,
          .used_bytes = taken,
          .peak_bytes = taken,
          .uses = {{"parameters", plan.parameter_file_bytes},
                   {"states", plan.record_file_bytes},
                   {"gradients", plan.gradient_file_bytes},
                   {"activation checkpoints", plan.activation_file_bytes},
                   {"head-room of several paths", taken - std::min(taken, plan.file_bytes())}}};
}

}  // namespace

std::vector<TierSummary> tiers_of(const JobMemory& memory) {
  const Offloader& offloader = memory.offloader;
  const MemoryPlan& plan = offloader.plan();
  const uint64_t device_bytes = memory.device.peak_bytes();
  std::vector<TierSummary> tiers = {
      {"device", memory.device_budget_bytes, "", plan.device_bytes, device_bytes, device_bytes,
       device_ledger(plan)},
      {"host", memory.offloader.budget().in_force(), "", plan.host_bytes, 0,
       memory.offloader.budget().peak_bytes(), joined(memory.offloader.budget().ledger())}};
  for (const TierUse& use : tiers[1].uses) tiers[1].used_bytes += use.bytes;
  const uint64_t taken = memory.offloader.report().tier_file_bytes();
  if (taken > 0) tiers.push_back(files_of(plan, taken));
  return tiers;
}

RunMemory memory_of(const JobMemory& memory) {
  const OffloadReport& report = memory.offloader.report();
  const OffloadCounters counted = report.counters();
  std::optional<CommitTotals> commits;
  if (memory.offloader.plan().keeps_commits)
    commits = {counted.commit_count, counted.commit_write_bytes, counted.manifest_bytes};
  return {tiers_of(memory), report.nvme_paths(), {}, commits, current_memory_use().pss_bytes};
}

void write_json(JsonWriter& json, const TrafficBound& bound) {
  json.begin_object();
  for (const CounterEntry& link : kLinks)
    if (link.bound != nullptr) json.member(link.key, bound.*link.bound);
  json.end();
}

bool read_json(const JsonNode& node, TrafficBound& bound) {
  for (const CounterEntry& link : kLinks) {
    const JsonNode* const bytes = link.bound != nullptr ? node.find(link.key) : nullptr;
    if (bytes != nullptr && !read_json(*bytes, bound.*link.bound)) return false;
  }
  return node.is(JsonNode::Kind::object);
}

}  // namespace terrace
