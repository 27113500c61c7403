#include "measure/bench_step.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/offload/watch/counter_table.h>

#include "measure/measuring.h"
#include "text_table.h"

namespace terrace {
namespace {

Spread spread_of(const StepBenchReport& report, double (*value)(const StepRound&)) {
  std::vector<double> values;
  for (const StepRound& round : report.rounds) values.push_back(value(round));
  return terrace::spread_of(std::move(values));
}

constexpr std::array kShownLinks = {link_of("h2d"),          link_of("d2h"),        link_of("record_read"),
                                    link_of("record_write"), link_of("param_read"), link_of("param_write")};
// The links from this one on are those of nvme.
constexpr size_t kFirstNvmeLink = 2;

// Returns the mean over all rounds of the bytes per step. Rounds differ only by parameters that stay on the
// device.
uint64_t moved_per_step(const StepBenchReport& report, const CounterEntry& link) {
  uint64_t bytes = 0;
  for (const StepRound& round : report.rounds) bytes += round.moved.*link.value;
  return bytes / report.rounds.size();
}

double per_parameter(const StepBenchReport& report, uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(report.plan.parameters);
}

// Part: one part of an update's time, as its thread sees it. The parts add up to the whole.
struct Part {
  const char* name;
  const char* key;
};
constexpr std::array kParts = {
    Part{"waiting for reads", "read_wait"},
    Part{"waiting for writes", "write_wait"},
    Part{"computing", "compute"},
    Part{"checksums", "check"},
    Part{"the device", "device_wait"},
    Part{"gradient norm", "norm"},
    Part{"the rest", "rest"},
};
using PartSeconds = std::array<double, kParts.size()>;

PartSeconds parts_of(const StepRound& round) {
  const OffloadCounters& moved = round.moved;
  const auto seconds = [](uint64_t ns) { return static_cast<double>(ns) * 1e-9; };
  PartSeconds parts = {seconds(moved.update_wait_ns - moved.update_write_wait_ns),
                       seconds(moved.update_write_wait_ns),
                       seconds(moved.update_compute_ns),
                       seconds(moved.update_check_ns),
                       seconds(moved.update_device_wait_ns),
                       seconds(moved.norm_ns)};
  double rest = round.seconds;
  for (const double part : parts) rest -= part;
  parts.back() = rest;
  return parts;
}

// Returns means over the rounds, because means add up and medians do not.
PartSeconds mean_parts(const StepBenchReport& report) {
  PartSeconds mean{};
  for (const StepRound& round : report.rounds) {
    const PartSeconds parts = parts_of(round);
    for (size_t p = 0; p < parts.size(); ++p) mean[p] += parts[p] / static_cast<double>(report.rounds.size());
  }
  return mean;
}

double sum(const PartSeconds& parts) {
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

// Returns the use of resources in the timed part, over all rounds.
ResourceUse measured_use(const StepBenchReport& report) {
  OffloadCounters all;
  for (const StepRound& round : report.rounds) all = all + round.timed;
  return resource_use(all);
}

double update_seconds(const StepRound& round) {
  return round.seconds;
}
double whole_seconds(const StepRound& round) {
  return round.step_seconds;
}
double update_cpu(const StepRound& round) {
  return round.cpu_seconds;
}
double io_seconds(const StepRound& round) {
  return round.io_seconds;
}
double io_cpu(const StepRound& round) {
  return round.io_cpu_seconds;
}
double ratio(const StepRound& round) {
  return round.seconds / round.io_seconds;
}

std::string range_text(const Spread& spread) {
  return fmt::format("{:.3f} s ({:.3f} to {:.3f})", spread.median, spread.least, spread.most);
}

std::string model_text(const StepBenchReport& report) {
  const OffloadOptions& options = report.plan.options;
  const RecordLayout& layout = options.record_layout;
  std::string text = fmt::format("model   {} parameters in {}, {} chunks of {} elements, {}\n",
                                 grouped(report.plan.parameters), name_of(report.plan.type), report.chunks,
                                 grouped(report.plan.chunk_elements), report.plan.optimizer);
  text += fmt::format("states  {} bytes per parameter, {} moments in {}{}; {}\n",
                      layout.tile_bytes() / kTileElements, layout.moment_count, name_of(layout.moment_type),
                      layout.master == MasterForm::remainder ? ", compact" : "",
                      name_of(report.plan.update_mode));
  text += fmt::format("places  parameters on {}, states on {}, {}{}\n", name_of(options.parameters),
                      name_of(options.states), options.durable ? "durable" : "in place",
                      options.verify_checksums ? ", checksums" : ", without checksums");
  std::string ledger;
  for (const TierUse& use : report.host_ledger)
    ledger += fmt::format("{}{} {}", ledger.empty() ? "" : ", ", use.purpose, format_bytes(use.bytes));
  text += fmt::format("memory  host {} ({}), device {}; whole process {}\n",
                      format_bytes(report.memory.host_bytes), ledger, format_bytes(report.device_bytes),
                      format_bytes(report.process_bytes));
  if (options.states == Placement::nvme) {
    text +=
        fmt::format("states  {} of {} chunks resident; ring of {} x {}; {} on disk\n",
                    report.memory.host_record_slots, report.memory.record_chunks, report.memory.ring_slots,
                    format_bytes(report.memory.ring_slot_bytes), format_bytes(report.tier_bytes));
  }
  return text;
}

std::string links_text(const StepBenchReport& report) {
  TextTable table({"bytes per step", "moved", "least possible", "ratio", "per parameter"});
  for (const CounterEntry& link : kShownLinks) {
    const uint64_t moved = moved_per_step(report, link), least = report.bound.*link.bound;
    table.add(
        {std::string(link.name), grouped(moved), grouped(least),
         least > 0 ? fmt::format("{:.3f}", static_cast<double>(moved) / static_cast<double>(least)) : "-",
         fmt::format("{:.3f}", per_parameter(report, moved))});
  }
  return table.text();
}

std::string parts_text(const StepBenchReport& report) {
  const PartSeconds parts = mean_parts(report);
  TextTable table({"time of an update", "mean", "share"});
  for (size_t p = 0; p < parts.size(); ++p)
    table.add({kParts[p].name, seconds_text(parts[p]), percent_text(parts[p], sum(parts))});
  return table.text();
}

std::string against_text(const StepBenchReport& report) {
  const Spread io = spread_of(report, io_seconds), ratios = spread_of(report, ratio);
  return fmt::format(
      "the same transfers without an update: {}, {:.3f} processor s; {} each way\n"
      "update over transfers: {:.3f} ({:.3f} to {:.3f}), median of {} pairs\n",
      range_text(io), spread_of(report, io_cpu).median, grouped(report.stream_bytes), ratios.median,
      ratios.least, ratios.most, report.rounds.size());
}

void write_rounds(JsonWriter& json, const StepBenchReport& report) {
  json.list("rounds", report.rounds, [&](const StepRound& round) {
    const PartSeconds parts = parts_of(round);
    json.begin_object().member("seconds", json_fixed(round.seconds, 6));
    json.member("cpu_seconds", json_fixed(round.cpu_seconds, 6));
    for (size_t p = 0; p < parts.size(); ++p)
      json.member(fmt::format("{}_seconds", kParts[p].key), json_fixed(parts[p], 6));
    json.member("io_seconds", json_fixed(round.io_seconds, 6));
    json.member("io_cpu_seconds", json_fixed(round.io_cpu_seconds, 6)).end();
  });
}

void write_links(JsonWriter& json, const StepBenchReport& report) {
  json.begin_object("links");
  for (const CounterEntry& link : kShownLinks) {
    const uint64_t moved = moved_per_step(report, link);
    json.begin_object(link.key).members({{"bytes", moved}, {"least_bytes", report.bound.*link.bound}});
    json.member("bytes_per_parameter", json_fixed(per_parameter(report, moved), 6)).end();
  }
  json.end();
}

void write_against_io(JsonWriter& json, const StepBenchReport& report) {
  if (!report.plan.against_io) {
    json.member("against_io", nullptr);
    return;
  }
  const Spread ratios = spread_of(report, ratio);
  json.begin_object("against_io").member("seconds", json_fixed(spread_of(report, io_seconds).median, 6));
  json.member("cpu_seconds", json_fixed(spread_of(report, io_cpu).median, 6));
  json.member("bytes_each_way", report.stream_bytes).member("ratio", json_fixed(ratios.median, 6));
  json.member("ratio_least", json_fixed(ratios.least, 6));
  json.member("ratio_most", json_fixed(ratios.most, 6)).end();
}

uint64_t nvme_bytes(const StepBenchReport& report) {
  uint64_t bytes = 0;
  for (size_t l = kFirstNvmeLink; l < kShownLinks.size(); ++l)
    bytes += moved_per_step(report, kShownLinks[l]);
  return bytes;
}

}  // namespace

std::string step_report_text(const StepBenchReport& report) {
  const Spread seconds = spread_of(report, update_seconds);
  const double cpu = spread_of(report, update_cpu).median;
  std::string text = model_text(report) + "\n" + links_text(report);
  text += fmt::format("nvme, both ways: {} bytes, {:.3f} per parameter\n\n", grouped(nvme_bytes(report)),
                      per_parameter(report, nvme_bytes(report)));
  const bool alone = report.plan.update_mode == UpdateMode::after_backward;
  if (alone) text += parts_text(report);
  text += resource_text(measured_use(report)) + "\n\n";
  text += fmt::format("{}: {}, median of {}; {:.3f} processor s, {:.2f} of a core; {} threads\n",
                      alone ? "update" : "whole step", range_text(seconds), report.rounds.size(), cpu,
                      cpu / seconds.median, report.threads);
  if (alone) {
    text += fmt::format("whole step, its leases without computing: {}\n",
                        range_text(spread_of(report, whole_seconds)));
  }
  return report.plan.against_io ? text + against_text(report) : text;
}

std::string step_report_json(const StepBenchReport& report) {
  const OffloadOptions& options = report.plan.options;
  const Spread seconds = spread_of(report, update_seconds);
  const RecordLayout& layout = options.record_layout;
  JsonWriter json;
  json.begin_object().member("parameters", report.plan.parameters);
  json.member("state_bytes_per_parameter", layout.tile_bytes() / kTileElements);
  json.member("compact", layout.master == MasterForm::remainder);
  json.members({{"chunk_elements", report.plan.chunk_elements}, {"chunks", report.chunks}});
  json.members({{"type", name_of(report.plan.type)}, {"optimizer", report.plan.optimizer}});
  json.member("parameters_on", name_of(options.parameters)).member("states_on", name_of(options.states));
  json.members({{"durable", options.durable}, {"checksums", options.verify_checksums}});
  json.members({{"threads", report.threads}, {"cached_chunks", report.memory.host_record_slots}});
  json.member("host_bytes", report.memory.host_bytes).begin_object("host");
  for (const TierUse& use : report.host_ledger) json.member(use.purpose, use.bytes);
  json.end().members({{"device_bytes", report.device_bytes}, {"process_bytes", report.process_bytes}});
  json.members({{"tier_bytes", report.tier_bytes}, {"nvme_bytes", nvme_bytes(report)}});
  write_links(json, report);
  json.member("update", name_of(report.plan.update_mode)).member("seconds", json_fixed(seconds.median, 6));
  json.member("step_seconds", json_fixed(spread_of(report, whole_seconds).median, 6));
  json.member("seconds_least", json_fixed(seconds.least, 6));
  json.member("seconds_most", json_fixed(seconds.most, 6));
  json.member("cpu_seconds", json_fixed(spread_of(report, update_cpu).median, 6));
  json.member("bound_by", key_of(measured_use(report).binding));
  write_against_io(json, report);
  write_rounds(json, report);
  return json.end().take() + "\n";
}

}  // namespace terrace
