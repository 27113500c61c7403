#include "inspect/sim_report.h"

#include <fmt/format.h>

#include <cmath>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>

#include "text_table.h"

namespace terrace {
namespace {

std::string bytes_text(double bytes) {
  return format_bytes(static_cast<uint64_t>(std::llround(bytes)));
}

std::string time_text(double ns) {
  return format_duration(static_cast<uint64_t>(std::llround(ns)));
}

// Returns by how much `bytes` exceed the least; "-" if the least is 0.
std::string over_text(double bytes, double least) {
  if (least <= 0) return bytes > 0 ? "-" : "0.0 %";
  return fmt::format("{:.1f} %", std::max(0.0, 100 * (bytes / least - 1)));
}

// The bound of a link counts the tiers above it as one.
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

void write_link(JsonWriter& json, const SimTraffic& link, double least) {
  json.begin_object().member("up_bytes", json_fixed(link.up_bytes, 1));
  json.member("down_bytes", json_fixed(link.down_bytes, 1));
  json.member("up_count", json_fixed(link.up_count, 3)).member("down_count", json_fixed(link.down_count, 3));
  json.member("busy_up_ns", json_fixed(link.busy_up_ns, 0));
  json.member("busy_down_ns", json_fixed(link.busy_down_ns, 0));
  json.member("over_bound", least > 0 ? json_fixed(link.bytes() / least - 1, 6) : nullptr).end();
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
  JsonWriter json;
  json.begin_object().member("schedule", report.schedule.name);
  json.members({{"items", report.schedule.items.size()}, {"uses", report.schedule.uses.size()}});
  json.member("prefetch_depth", report.machine.prefetch_depth);
  json.break_line(1).list("tiers", report.machine.tiers, [&](const SimTier& tier) {
    const bool is_bounded = tier.capacity_bytes != kUnboundedBytes;
    json.begin_object().member("name", tier.name);
    json.member("capacity_bytes", is_bounded ? JsonValue(tier.capacity_bytes) : nullptr).end();
  });
  json.break_line(1).list("bounds", report.bounds, [&](const LowerBound& bound) {
    json.object({{"kind", name_of(bound.kind)}, {"bytes_per_step", json_fixed(bound.bytes_per_step, 1)}});
  });
  json.break_line(1).begin_list("policies");
  for (size_t p = 0; p < report.results.size(); ++p) {
    const SimResult& result = report.results[p];
    json.break_line(2).begin_object().member("policy", name_of(report.policies[p])).begin_list("links");
    for (size_t k = 0; k < result.links.size(); ++k)
      write_link(json, result.links[k], report.bounds[k].bytes_per_step);
    json.end().member("step_ns", json_fixed(result.step_ns, 0));
    json.member("compute_ns", json_fixed(result.compute_ns, 0));
    json.member("stall_ns", json_fixed(result.stall_ns(), 0));
    json.members({{"period_steps", result.period_steps}, {"steady", result.steady}}).end();
  }
  return json.end().end().take() + "\n";
}

}  // namespace terrace
