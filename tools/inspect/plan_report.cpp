#include "inspect/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/link_table.h>
#include <terrace/runtime/config/json/json_document.h>

#include "text_table.h"
#include "train/step_log.h"

namespace terrace {
namespace {

constexpr double kDaySeconds = 86400;

std::string memory_table(const PlanReport& report) {
  TextTable table({"memory at its peak", "budget", "planned"});
  for (const PredictedTier& tier : report.prediction.tiers) {
    table.add({tier.name, tier.budget_bytes > 0 ? format_bytes(tier.budget_bytes) : "disk",
               format_bytes(tier.peak_bytes)});
    for (const TierUse& use : tier.uses) table.add({"  " + use.purpose, "", format_bytes(use.bytes)});
  }
  return table.text();
}

std::string link_table(const PlanReport& report) {
  TextTable table({"moved in a step", "bytes", ""});
  for (const LinkEntry& link : kLinks) {
    const uint64_t bytes = report.prediction.step.*link.moved;
    if (bytes > 0) table.add({link.name, grouped(bytes), format_bytes(bytes)});
  }
  return table.text();
}

std::string free_text(const std::filesystem::path& path) {
  try {
    return fmt::format(", where {} are free", format_bytes(io::free_bytes_at(path)));
  } catch (const Error&) {
    return ", which is not there yet";
  }
}

std::string disk_text(const PlanReport& report) {
  std::string text;
  for (const PathShare& share : report.plan.disk)
    text += fmt::format("disk: {} in {}{}\n", format_bytes(share.bytes), share.path.string(),
                        free_text(share.path));
  return text;
}

std::string writes_text(const PlanReport& report) {
  const DriveWrites& writes = report.writes;
  if (writes.step_bytes == 0 && report.prediction.commit_write_bytes == 0) return "";
  std::string text =
      fmt::format("written to nvme: {:.6f} TB a step", static_cast<double>(writes.step_bytes) * 1e-12);
  if (report.prediction.commit_write_bytes > 0)
    text += fmt::format(", {} more by a commit", format_bytes(report.prediction.commit_write_bytes));
  if (writes.bytes_a_day > 0) text += fmt::format("; {:.3f} TB a day", writes.bytes_a_day * 1e-12);
  if (writes.days > 0)
    text += fmt::format(", {:.0f} days until {:g} TB are written", writes.days, report.endurance_terabytes);
  if (writes.days == 0 && report.endurance_terabytes > 0) {
    const double steps = report.endurance_terabytes * 1e12 / static_cast<double>(writes.step_bytes);
    text += writes.step_bytes > 0
                ? fmt::format("; {:.0f} steps until {:g} TB are written", steps, report.endurance_terabytes)
                : "; commits alone write, and how often they do is not known without the time of a step";
  }
  return text + "\n";
}

std::string time_text(const PlanReport& report) {
  const PlanPrediction& prediction = report.prediction;
  if (!prediction.has_times) return report.no_times.empty() ? "" : "time: " + report.no_times + "\n";
  TextTable table({"time of a step", "seconds", "share"});
  const auto add = [&](const char* name, double seconds) {
    table.add({name, fmt::format("{:.3f}", seconds), percent_text(seconds, prediction.step_seconds)});
  };
  add("forward", prediction.forward_seconds);
  add("backward", prediction.backward_seconds);
  add("update", prediction.update_seconds);
  add("in all", prediction.step_seconds);
  std::string text = table.text() + resource_text(prediction.use()) + "\n\n";
  TextTable rates({"it rests on", "rate", "unit", "from"});
  for (const PredictedRate& rate : prediction.rates)
    rates.add({rate.name, fmt::format("{:.3g}", rate.value), rate.unit, rate.origin});
  text += rates.text();
  return text + fmt::format("operations: {}, measured now\n", report.operations);
}

std::string tiers_json(const PlanPrediction& prediction) {
  std::string tiers;
  for (const PredictedTier& tier : prediction.tiers) {
    std::string uses;
    for (const TierUse& use : tier.uses)
      uses += fmt::format(R"({}{{"purpose": {}, "bytes": {}}})", uses.empty() ? "" : ", ",
                          json_quoted(use.purpose), use.bytes);
    tiers += fmt::format(R"({}    {{"tier": "{}", "budget_bytes": {}, "peak_bytes": {}, "uses": [{}]}})",
                         tiers.empty() ? "" : ",\n", tier.name,
                         tier.budget_bytes > 0 ? std::to_string(tier.budget_bytes) : "null", tier.peak_bytes,
                         uses);
  }
  return tiers;
}

std::string links_json(const PlanPrediction& prediction) {
  std::string links;
  for (const LinkEntry& link : kLinks)
    links += fmt::format(R"({}    {{"link": "{}", "bytes_per_step": {}}})", links.empty() ? "" : ",\n",
                         link.key, prediction.step.*link.moved);
  return links;
}

std::string time_json(const PlanPrediction& prediction) {
  if (!prediction.has_times) return "null";
  std::string rates;
  for (const PredictedRate& rate : prediction.rates)
    rates +=
        fmt::format(R"({}{{"name": {}, "value": {}, "unit": "{}", "origin": {}}})", rates.empty() ? "" : ", ",
                    json_quoted(rate.name), json_number(rate.value), rate.unit, json_quoted(rate.origin));
  return fmt::format(
      R"({{"forward_seconds": {}, "backward_seconds": {}, "update_seconds": {}, "step_seconds": {}, )"
      R"("bound_by": "{}", "rates": [{}]}})",
      json_number(prediction.forward_seconds), json_number(prediction.backward_seconds),
      json_number(prediction.update_seconds), json_number(prediction.step_seconds),
      key_of(prediction.binding), rates);
}

std::string splits_json(std::span<const Split> splits) {
  std::string text;
  for (const Split& split : splits) {
    text += fmt::format(R"({}    {{"flags": {}, "fits": {}, "update": "{}", "step_seconds": {}}})",
                        text.empty() ? "" : ",\n", json_quoted(split.flags), split.refusal.empty(),
                        name_of(split.prediction.update_mode),
                        split.prediction.has_times ? json_number(split.prediction.step_seconds) : "null");
  }
  return splits.empty() ? "[]" : "[\n" + text + "\n  ]";
}

std::string disk_json(const PlanReport& report) {
  std::string paths;
  for (const PathShare& share : report.plan.disk)
    paths += fmt::format(R"({}{{"path": {}, "bytes": {}}})", paths.empty() ? "" : ", ",
                         json_quoted(share.path.string()), share.bytes);
  return paths;
}

std::string known(double value) {
  return value > 0 ? json_number(value) : "null";
}

}  // namespace

DriveWrites drive_writes(const TrainConfig& config, const PlanPrediction& prediction,
                         double endurance_terabytes) {
  const OffloadCounters& step = prediction.step;
  DriveWrites writes;
  writes.step_bytes = disk_write_bytes(step) - step.commit_write_bytes;
  if (!prediction.has_times || prediction.step_seconds <= 0) return writes;
  const double steps_a_day = kDaySeconds / prediction.step_seconds;
  double commits_a_day = 0;
  if (config.terrace.commit_every_steps > 0)
    commits_a_day = steps_a_day / static_cast<double>(config.terrace.commit_every_steps);
  if (config.terrace.commit_every_seconds > 0)
    commits_a_day =
        std::max(commits_a_day, kDaySeconds / static_cast<double>(config.terrace.commit_every_seconds));
  writes.bytes_a_day =
      static_cast<double>(writes.step_bytes) * steps_a_day +
      static_cast<double>(prediction.commit_write_bytes) * std::min(commits_a_day, steps_a_day);
  if (writes.bytes_a_day > 0) writes.days = endurance_terabytes * 1e12 / writes.bytes_a_day;
  return writes;
}

std::string plan_text(const PlanReport& report) {
  std::string text = fmt::format(
      "{}: {} parameters, {} trained; chunks of {} elements, {}; the update runs {}\n", report.model,
      grouped(report.plan.parameter_count), grouped(report.plan.trainable_count),
      grouped(report.plan.chunk_elements), report.plan.chunk_origin, name_of(report.prediction.update_mode));
  text += "\n" + memory_table(report) + "\n" + link_table(report);
  text += fmt::format("from step {} on; {} chunk fetches, {} of them on demand, {} evictions\n\n",
                      report.prediction.repeats_from_step, grouped(report.prediction.step.fetch_count),
                      grouped(report.prediction.step.demand_fetch_count),
                      grouped(report.prediction.step.eviction_count));
  text += disk_text(report) + writes_text(report) + time_text(report);
  return text + (report.splits.empty() ? "" : "\n" + splits_text(report.splits, report.rates));
}

std::string plan_json(const PlanReport& report) {
  const PlanPrediction& prediction = report.prediction;
  std::string text = "{\n  \"fits\": true,\n";
  text += fmt::format("  \"model\": {},\n  \"parameters\": {},\n  \"trained_parameters\": {},\n",
                      json_quoted(report.model), report.plan.parameter_count, report.plan.trainable_count);
  text += fmt::format("  \"chunk_elements\": {},\n  \"update\": \"{}\",\n", report.plan.chunk_elements,
                      name_of(report.prediction.update_mode));
  text += fmt::format("  \"tiers\": [\n{}\n  ],\n  \"links\": [\n{}\n  ],\n", tiers_json(prediction),
                      links_json(prediction));
  text += fmt::format("  \"repeats_from_step\": {},\n  \"fetches\": {},\n  \"demand_fetches\": {},\n",
                      prediction.repeats_from_step, prediction.step.fetch_count,
                      prediction.step.demand_fetch_count);
  text += fmt::format("  \"evictions\": {},\n  \"disk\": [{}],\n", prediction.step.eviction_count,
                      disk_json(report));
  text += fmt::format(
      "  \"writes\": {{\"step_bytes\": {}, \"commit_bytes\": {}, \"bytes_a_day\": {}, \"endurance_bytes\": "
      "{}, \"days\": {}}},\n",
      report.writes.step_bytes, prediction.commit_write_bytes, known(report.writes.bytes_a_day),
      known(report.endurance_terabytes * 1e12), known(report.writes.days));
  text += fmt::format("  \"time\": {},\n  \"no_time\": {},\n", time_json(prediction),
                      report.no_times.empty() ? "null" : json_quoted(report.no_times));
  const bool has_best = !report.splits.empty() && report.splits.front().refusal.empty();
  return text + fmt::format("  \"best\": {},\n  \"rates\": {},\n  \"splits\": {}\n}}\n",
                            has_best ? json_quoted(report.splits.front().flags) : "null",
                            report.rates.empty() ? "null" : json_quoted(report.rates),
                            splits_json(report.splits));
}

std::string splits_text(std::span<const Split> splits, const std::string& rates) {
  if (splits.empty()) return "";
  TextTable table({"split", "update", "device", "host", "nvme", "seconds"});
  for (const Split& split : splits) {
    if (!split.refusal.empty()) {
      table.add({split.flags, "-", "-", "-", "-", "does not fit"});
      continue;
    }
    std::array<std::string, 3> tiers = {"-", "-", "-"};
    for (size_t t = 0; t < split.prediction.tiers.size(); ++t)
      tiers[t] = format_bytes(split.prediction.tiers[t].peak_bytes);
    table.add({split.flags, std::string(name_of(split.prediction.update_mode)), tiers[0], tiers[1], tiers[2],
               split.prediction.has_times ? fmt::format("{:.3f}", split.prediction.step_seconds) : "-"});
  }
  std::string text = table.text();
  const Split& best = splits.front();
  if (!best.refusal.empty()) return text + "best: none of them fits\n";
  text +=
      fmt::format("best: {}, {}\n", best.flags,
                  best.prediction.has_times ? fmt::format("{:.3f} s a step", best.prediction.step_seconds)
                                            : "which moves least over the slowest link (no times are known)");
  return rates.empty() ? text : text + fmt::format("rates: {}; processor and copies measured now\n", rates);
}

Error with_ways_out(const Error& reason, const Shortage& shortage) {
  ErrorParts parts = reason.parts();
  if (shortage.ways.empty()) return reason;
  parts.advice =
      shortage.ways.size() > 1
          ? "it fits, as planned, with any one of these, memory rounded up to whole MiB:"
          : "it fits, as planned, with this alone of what was tried, memory rounded up to whole MiB:";
  for (const WayOut& way : shortage.ways)
    parts.advice += fmt::format("\n    {}  ({})", way.change, way.effect);
  return Error(reason.kind(), std::move(parts));
}

std::string shortage_json(const Shortage& shortage, const std::string& reason,
                          std::span<const Split> splits) {
  std::string tiers;
  for (const TierShortage& tier : shortage.tiers)
    tiers += fmt::format(R"({}{{"tier": "{}", "budget_bytes": {}, "needed_bytes": {}, "missing_bytes": {}}})",
                         tiers.empty() ? "" : ", ", tier.tier, tier.budget_bytes, tier.needed_bytes,
                         tier.missing_bytes());
  std::string ways;
  for (const WayOut& way : shortage.ways)
    ways += fmt::format(R"({}{{"change": {}, "effect": {}}})", ways.empty() ? "" : ", ",
                        json_quoted(way.change), json_quoted(way.effect));
  return fmt::format(
      "{{\n  \"fits\": false,\n  \"short\": [{}],\n  \"reason\": {},\n  \"ways\": [{}],\n  \"splits\": "
      "{}\n}}\n",
      tiers, json_quoted(reason), ways, splits_json(splits));
}

}  // namespace terrace
