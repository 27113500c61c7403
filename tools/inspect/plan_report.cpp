#include "inspect/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <terrace/aio/file.h>
#include <terrace/base/duration_text.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>
#include <terrace/runtime/observe/log/step_log.h>

#include "text_table.h"

namespace terrace {
namespace {

std::string free_text(const std::filesystem::path& path) {
  try {
    return fmt::format(", where {} are free", format_bytes(io::free_bytes_at(path)));
  } catch (const Error&) {
    return ", which is not there yet";
  }
}

// What a machine lacks that is not this one.
std::string missing_lines(const PlanReport& report) {
  std::string text;
  for (const TierShortage& tier : report.missing)
    text += fmt::format("missing on {}: {} are there and {} are needed, so that {}\n", tier.tier,
                        format_bytes(tier.budget_bytes), format_bytes(tier.needed_bytes), missing_text(tier));
  if (!text.empty()) text += "the plan is for a machine that has them\n";
  return text;
}

std::string disk_text(const PlanReport& report) {
  std::string text;
  if (report.disk_bytes > 0) {
    uint64_t bytes = 0;
    for (const PathShare& share : report.plan.disk) bytes += share.bytes;
    return fmt::format("disk: {} of {} (--disk)\n", format_bytes(bytes), format_bytes(report.disk_bytes));
  }
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

// What ranks exchange goes on beside the step, which waits for it where it comes too late.
std::string ranks_text(const PlanReport& report) {
  const PlanPrediction& prediction = report.prediction;
  if (report.ranks == 1) return "";
  if (report.network_is_unknown)
    return "without what other hosts take: --network and --network-latency say how fast they are\n";
  const double waited = 1e-9 * static_cast<double>(prediction.step.time[TimeCause::ranks]);
  const RankTerms& terms = prediction.ranks.seconds;
  const bool is_uneven = report.ranks % report.ranks_per_host != 0;
  return fmt::format(
      "{}exchanges of {} ranks, {} on a host: {:.3f} s, one after the other; {} rule: {:.3f} s of bytes, "
      "{:.3f} s of latency; the step waits {:.3f} s for them, and for the copies and sums behind them\n",
      is_uneven ? "hosts have different numbers of ranks: what ranks exchange goes in one level\n" : "",
      report.ranks, report.ranks_per_host, terms.total(),
      terms.bytes() >= terms.latency() ? "bytes" : "latencies", terms.bytes(), terms.latency(), waited);
}

double tokens_per_second(const PlanReport& report) {
  return static_cast<double>(report.tokens_per_step) / report.prediction.step_seconds;
}

double run_seconds(const PlanReport& report) {
  return report.prediction.step_seconds * static_cast<double>(report.steps);
}

std::string run_text(const PlanReport& report) {
  if (report.prediction.step_seconds <= 0) return "";
  return fmt::format("{:.4g} tokens/s; {} steps take {}\n", tokens_per_second(report), grouped(report.steps),
                     format_seconds(run_seconds(report)));
}

// An update takes as long for one micro-batch as for many.
std::string update_hint(const PlanPrediction& prediction) {
  constexpr double kMuch = 0.5;
  if (prediction.update_seconds <= kMuch * prediction.step_seconds) return "";
  return fmt::format(
      "the update takes {} of a step, however many micro-batches share it: more of them (--accumulation) "
      "give more tokens a second\n",
      percent_text(prediction.update_seconds, prediction.step_seconds));
}

std::string time_text(const PlanReport& report) {
  const PlanPrediction& prediction = report.prediction;
  if (!prediction.has_times) return report.no_times.empty() ? "" : "time: " + report.no_times + "\n";
  TextTable table({"time of a step", "seconds", "share"});
  const auto add = [&](const char* name, double seconds) {
    table.add({name, fmt::format("{:.3f}", seconds), percent_text(seconds, prediction.step_seconds)});
  };
  // An update that runs beside a pass takes time of its own only where it is not over with the pass.
  const UpdateMode mode = prediction.update_mode;
  add(mode == UpdateMode::next_forward ? "forward, with the update of the step before" : "forward",
      prediction.forward_seconds);
  add(mode == UpdateMode::during_backward ? "backward, with what it hides of the update" : "backward",
      prediction.backward_seconds);
  if (mode != UpdateMode::next_forward) add("update", prediction.update_seconds);
  add("in all", prediction.step_seconds);
  std::string text = table.text() + run_text(report) + update_hint(prediction) +
                     resource_text(prediction.use()) + "\n" + ranks_text(report) + "\n" +
                     outlook_text(report.outlook);
  TextTable rates({"it rests on", "rate", "unit", "from"});
  for (const PredictedRate& rate : prediction.rates)
    rates.add({rate.name, fmt::format("{:.3g}", rate.value), rate.unit, rate.origin});
  text += rates.text();
  return text + fmt::format("operations: {}\n", report.operations);
}

void write_time(JsonWriter& json, const PlanReport& report) {
  const PlanPrediction& prediction = report.prediction;
  if (!prediction.has_times) {
    json.member("time", nullptr);
    return;
  }
  json.begin_object("time").member("forward_seconds", prediction.forward_seconds);
  json.member("backward_seconds", prediction.backward_seconds);
  json.member("update_seconds", prediction.update_seconds);
  json.member("step_seconds", prediction.step_seconds).member("bound_by", key_of(prediction.binding));
  json.member("tokens_per_second", tokens_per_second(report)).member("run_seconds", run_seconds(report));
  json.member("exchange_seconds", prediction.ranks.seconds.total());
  json.member("exchange_latency_seconds", prediction.ranks.seconds.latency());
  json.member("rank_wait_seconds", 1e-9 * static_cast<double>(prediction.step.time[TimeCause::ranks]));
  json.list("rates", prediction.rates, [&](const PredictedRate& rate) {
    json.object({{"name", rate.name}, {"value", rate.value}, {"unit", rate.unit}, {"origin", rate.origin}});
  });
  json.end();
}

void write_short(JsonWriter& json, const std::vector<TierShortage>& tiers) {
  json.list("short", tiers, [&](const TierShortage& tier) {
    json.begin_object().members({{"tier", tier.tier}, {"budget_bytes", tier.budget_bytes}});
    json.members({{"needed_bytes", tier.needed_bytes}, {"missing_bytes", tier.missing_bytes()}}).end();
  });
}

void write_splits(JsonWriter& json, std::span<const Split> splits) {
  json.begin_list("splits", JsonLayout::lines);
  for (const Split& split : splits) {
    const PlanPrediction& prediction = split.prediction;
    json.begin_object().members({{"flags", split.flags}, {"fits", split.refusal.empty()}});
    json.member("update", name_of(prediction.update_mode));
    json.member("step_seconds", prediction.has_times ? JsonValue(prediction.step_seconds) : nullptr).end();
  }
  json.end();
}

void write_writes(JsonWriter& json, const PlanReport& report) {
  const auto known = [](double value) { return value > 0 ? JsonValue(value) : nullptr; };
  json.begin_object("writes").member("step_bytes", report.writes.step_bytes);
  json.member("commit_bytes", report.prediction.commit_write_bytes);
  json.member("bytes_a_day", known(report.writes.bytes_a_day));
  json.member("endurance_bytes", known(report.endurance_terabytes * 1e12));
  json.member("days", known(report.writes.days)).end();
}

// Returns the request for several changes together: "--micro-batch 1 --accumulation 8".
std::string in_flags(std::span<const ChangedOption> changes) {
  std::string flags;
  for (const ChangedOption& change : changes) {
    const std::string_view flag = names_of(change.option).flag;
    const bool has_value = flag.find(' ') != std::string_view::npos;
    flags += fmt::format("{}{}{}", flags.empty() ? "" : " ", flag, has_value ? "" : " " + change.value);
  }
  return flags;
}

}  // namespace

std::string memory_table(const PlanPrediction& prediction) {
  TextTable table({"memory at its peak", "budget", "planned"});
  for (const PredictedTier& tier : prediction.tiers) {
    table.add({tier.name, tier.budget_bytes > 0 ? format_bytes(tier.budget_bytes) : "disk",
               format_bytes(tier.peak_bytes)});
    for (const TierUse& use : tier.uses) table.add({"  " + use.purpose, "", format_bytes(use.bytes)});
  }
  return table.text();
}

std::string link_table(const PlanPrediction& prediction) {
  TextTable table({"moved in a step", "bytes", ""});
  bool moves = false;
  for (const CounterEntry& link : kLinks) {
    const uint64_t bytes = prediction.step.*link.value;
    if (bytes == 0) continue;
    table.add({std::string(link.name), grouped(bytes), format_bytes(bytes)});
    moves = true;
  }
  return moves ? table.text() : "nothing is moved in a step: all of it stays where it is used\n";
}

void write_tiers(JsonWriter& json, const PlanPrediction& prediction) {
  json.begin_list("tiers", JsonLayout::lines);
  for (const PredictedTier& tier : prediction.tiers) {
    json.begin_object().member("tier", tier.name);
    json.member("budget_bytes", tier.budget_bytes > 0 ? JsonValue(tier.budget_bytes) : nullptr);
    json.member("peak_bytes", tier.peak_bytes);
    write_json(json.key("uses"), tier.uses);
    json.end();
  }
  json.end();
}

void write_links(JsonWriter& json, const PlanPrediction& prediction) {
  json.list(
      "links", kLinks,
      [&](const CounterEntry& link) {
        json.object({{"link", link.key}, {"bytes_per_step", prediction.step.*link.value}});
      },
      JsonLayout::lines);
}

std::string plan_text(const PlanReport& report) {
  std::string text = fmt::format(
      "{}: {} parameters, {} trained; chunks of {} elements, {}; the update runs {}\n", report.model,
      grouped(report.plan.parameter_count), grouped(report.plan.trainable_count),
      grouped(report.plan.chunk_elements), report.plan.chunk_origin, name_of(report.prediction.update_mode));
  text += "\n" + memory_table(report.prediction) + "\n" + link_table(report.prediction);
  text += fmt::format("from step {} on; {} chunk fetches, {} of them on demand, {} evictions\n\n",
                      report.prediction.repeats_from_step, grouped(report.prediction.step.fetch_count),
                      grouped(report.prediction.step.demand_fetch_count),
                      grouped(report.prediction.step.eviction_count));
  text += missing_lines(report) + disk_text(report) + writes_text(report) + time_text(report);
  if (!report.splits.empty()) text += "\n" + splits_text(report.splits, report.rates);
  return text + (report.config_file.empty() ? "" : "\nds.json of this plan:\n" + report.config_file);
}

std::string plan_json(const PlanReport& report) {
  const PlanPrediction& prediction = report.prediction;
  JsonWriter json;
  json.begin_object(JsonLayout::lines).members({{"fits", report.missing.empty()}, {"model", report.model}});
  if (!report.missing.empty()) write_short(json, report.missing);
  json.member("steps", report.steps).member("tokens_per_step", report.tokens_per_step);
  json.member("parameters", report.plan.parameter_count);
  json.member("trained_parameters", report.plan.trainable_count);
  json.member("chunk_elements", report.plan.chunk_elements);
  json.member("update", name_of(prediction.update_mode));
  write_tiers(json, prediction);
  write_links(json, prediction);
  json.member("repeats_from_step", prediction.repeats_from_step);
  json.member("fetches", prediction.step.fetch_count);
  json.member("demand_fetches", prediction.step.demand_fetch_count);
  json.member("evictions", prediction.step.eviction_count);
  json.list("disk", report.plan.disk, [&](const PathShare& share) {
    json.object({{"path", share.path.string()}, {"bytes", share.bytes}});
  });
  write_writes(json, report);
  write_time(json, report);
  write_outlook(json, report.outlook);
  json.member("no_time", json_text_or_null(report.no_times));
  const bool has_best = !report.splits.empty() && report.splits.front().refusal.empty();
  json.member("best", has_best ? JsonValue(report.splits.front().flags) : nullptr);
  json.member("rates", json_text_or_null(report.rates));
  write_splits(json, report.splits);
  json.member("config", report.config_file.empty() ? nullptr : json_raw(report.config_file));
  return json.end().take() + "\n";
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

Error with_ways_out(const Error& reason, std::span<const WayOut> ways) {
  if (ways.empty()) return reason;
  ErrorParts parts = reason.parts();
  parts.advice = fmt::format("it fits, as planned, with {}, memory rounded up to whole MiB:",
                             ways.size() > 1 ? "any one of these" : "this");
  for (const WayOut& way : ways)
    parts.advice += fmt::format("\n    {}  ({})", in_flags(way.changes), way.effect);
  return Error(reason.kind(), std::move(parts));
}

std::string shortage_json(const ShortageError& reason, std::span<const WayOut> ways,
                          std::span<const Split> splits) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("fits", false);
  write_short(json, reason.tiers());
  json.member("reason", reason.in(Door::program)).list("ways", ways, [&](const WayOut& way) {
    json.object({{"change", in_flags(way.changes)}, {"effect", way.effect}});
  });
  write_splits(json, splits);
  return json.end().take() + "\n";
}

}  // namespace terrace
