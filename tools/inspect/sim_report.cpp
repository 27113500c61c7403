#include "inspect/sim_report.h"

#include <fmt/format.h>

#include <cmath>

#include <terrace/base/units.h>
#include <terrace/runtime/config/json/json_document.h>

#include "text_table.h"

namespace terrace {
namespace {

std::string bytes_text(double bytes) {
  return format_bytes(static_cast<uint64_t>(std::llround(bytes)));
}

std::string time_text(double ns) {
  return format_duration(static_cast<uint64_t>(std::llround(ns)));
}

// How much more than the least; "-" where the least is nothing.
std::string over_text(double bytes, double least) {
  if (least <= 0) return bytes > 0 ? "-" : "0.0 %";
  return fmt::format("{:.1f} %", std::max(0.0, 100 * (bytes / least - 1)));
}

// The bound of a link takes the tiers above it for one.
std::string bound_words(BoundKind kind, size_t link) {
  if (link > 0 && kind != BoundKind::flow)
    return fmt::format("{}, of the {} tiers above it as one", name_of(kind), link + 1);
  switch (kind) {
    case BoundKind::exact:
      return "exact: equal sizes, nothing to write back";
    case BoundKind::exhaustive:
      return "exhaustive: the best plan there is";
    case BoundKind::flow:
      return "relaxed: a flow of least cost";
  }
  return "";
}

std::string head_text(const SimReport& report) {
  uint64_t bytes = 0;
  for (const SimItem& item : report.schedule.items) bytes += item.bytes;
  std::string text = fmt::format("{}: {} items of {} together, {} uses a step\n", report.schedule.name,
                                 grouped(report.schedule.items.size()), format_bytes(bytes),
                                 grouped(report.schedule.uses.size()));
  for (size_t k = 0; k < report.machine.links.size(); ++k) {
    const SimTier& tier = report.machine.tiers[k];
    const SimLink& link = report.machine.links[k];
    text += fmt::format("{}: {}; from {} {:.1f} GB/s, to it {:.1f} GB/s; least of both in a step: {} ({})\n",
                        tier.name, format_bytes(tier.capacity_bytes), report.machine.tiers[k + 1].name,
                        link.up_bytes_per_second / 1e9, link.down_bytes_per_second / 1e9,
                        bytes_text(report.bounds[k].bytes_per_step), bound_words(report.bounds[k].kind, k));
  }
  return text;
}

std::string link_json(const SimTraffic& link, double least) {
  return fmt::format(
      R"({{"up_bytes": {:.1f}, "down_bytes": {:.1f}, "up_count": {:.3f}, "down_count": {:.3f}, )"
      R"("busy_up_ns": {:.0f}, "busy_down_ns": {:.0f}, "over_bound": {}}})",
      link.up_bytes, link.down_bytes, link.up_count, link.down_count, link.busy_up_ns, link.busy_down_ns,
      least > 0 ? fmt::format("{:.6f}", link.bytes() / least - 1) : "null");
}

}  // namespace

std::string sim_text(const SimReport& report) {
  std::vector<std::string> headings = {"policy"};
  for (size_t k = 0; k < report.machine.links.size(); ++k) {
    const std::string &upper = report.machine.tiers[k].name, &lower = report.machine.tiers[k + 1].name;
    headings.insert(headings.end(), {lower + "->" + upper, upper + "->" + lower, "over least"});
  }
  headings.insert(headings.end(), {"step", "compute", "stall"});
  TextTable table(std::move(headings));
  bool all_steady = true;
  for (size_t p = 0; p < report.results.size(); ++p) {
    const SimResult& result = report.results[p];
    std::vector<std::string> row = {std::string(name_of(report.policies[p]))};
    for (size_t k = 0; k < result.links.size(); ++k) {
      row.push_back(bytes_text(result.links[k].up_bytes));
      row.push_back(bytes_text(result.links[k].down_bytes));
      row.push_back(over_text(result.links[k].bytes(), report.bounds[k].bytes_per_step));
    }
    row.push_back(time_text(result.step_ns));
    row.push_back(time_text(result.compute_ns));
    row.push_back(time_text(result.stall_ns()));
    table.add(std::move(row));
    all_steady = all_steady && result.steady;
  }
  std::string text = head_text(report) + "\n" + table.text();
  if (!all_steady) text += "\nNot every policy came to repeat itself: its figures are means of many steps.\n";
  return text;
}

std::string sim_json(const SimReport& report) {
  std::string tiers, bounds, policies;
  for (const SimTier& tier : report.machine.tiers) {
    tiers += fmt::format(
        R"({}{{"name": {}, "capacity_bytes": {}}})", tiers.empty() ? "" : ", ", json_quoted(tier.name),
        tier.capacity_bytes == kUnboundedBytes ? "null" : std::to_string(tier.capacity_bytes));
  }
  for (const LowerBound& bound : report.bounds) {
    bounds += fmt::format(R"({}{{"kind": "{}", "bytes_per_step": {:.1f}}})", bounds.empty() ? "" : ", ",
                          name_of(bound.kind), bound.bytes_per_step);
  }
  for (size_t p = 0; p < report.results.size(); ++p) {
    const SimResult& result = report.results[p];
    std::string links;
    for (size_t k = 0; k < result.links.size(); ++k)
      links += (k == 0 ? "" : ", ") + link_json(result.links[k], report.bounds[k].bytes_per_step);
    policies += fmt::format(
        R"({}{{"policy": "{}", "links": [{}], "step_ns": {:.0f}, "compute_ns": {:.0f}, "stall_ns": {:.0f}, )"
        R"("period_steps": {}, "steady": {}}})",
        policies.empty() ? "" : ",\n  ", name_of(report.policies[p]), links, result.step_ns,
        result.compute_ns, result.stall_ns(), result.period_steps, result.steady);
  }
  return fmt::format(
      "{{\"schedule\": {}, \"items\": {}, \"uses\": {}, \"prefetch_depth\": {},\n \"tiers\": [{}],\n "
      "\"bounds\": [{}],\n \"policies\": [\n  {}]}}\n",
      json_quoted(report.schedule.name), report.schedule.items.size(), report.schedule.uses.size(),
      report.machine.prefetch_depth, tiers, bounds, policies);
}

}  // namespace terrace
