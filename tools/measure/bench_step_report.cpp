#include "measure/bench_step_report.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include <terrace/base/units.h>
#include <terrace/offload/watch/binding_resource.h>
#include <terrace/runtime/config/json/json_document.h>

#include "measure/spread.h"
#include "text_table.h"

namespace terrace {
namespace {

constexpr double kNs = 1e-9;

Spread spread_of(const StepBenchReport& report, double (*value)(const StepRound&)) {
  std::vector<double> values;
  for (const StepRound& round : report.rounds) values.push_back(value(round));
  return terrace::spread_of(std::move(values));
}

struct Link {
  const char* name;
  const char* key;
  uint64_t OffloadCounters::*moved;
  uint64_t TrafficBound::*least;
};
constexpr std::array kLinks = {
    Link{"host -> device", "h2d", &OffloadCounters::h2d_bytes, &TrafficBound::h2d_bytes},
    Link{"device -> host", "d2h", &OffloadCounters::d2h_bytes, &TrafficBound::d2h_bytes},
    Link{"states, nvme reads", "record_read", &OffloadCounters::record_read_bytes,
         &TrafficBound::record_read_bytes},
    Link{"states, nvme writes", "record_write", &OffloadCounters::record_write_bytes,
         &TrafficBound::record_write_bytes},
    Link{"parameters, nvme reads", "param_read", &OffloadCounters::param_read_bytes,
         &TrafficBound::param_read_bytes},
    Link{"parameters, nvme writes", "param_write", &OffloadCounters::param_write_bytes,
         &TrafficBound::param_write_bytes},
};
// What lies on nvme.
constexpr size_t kFirstNvmeLink = 2;

// Of all rounds, per step; they are the same in every one, but for parameters that stay on the device.
uint64_t moved_per_step(const StepBenchReport& report, const Link& link) {
  uint64_t bytes = 0;
  for (const StepRound& round : report.rounds) bytes += round.moved.*link.moved;
  return bytes / report.rounds.size();
}

double per_parameter(const StepBenchReport& report, uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(report.plan.parameters);
}

// Where the time of an update goes, as its thread sees it. The parts add up to the whole.
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
  const auto seconds = [](uint64_t ns) { return static_cast<double>(ns) * kNs; };
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

// Means over the rounds, which add up where medians would not.
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

// Of what is measured, all rounds together.
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
        fmt::format("cached  {} of {} chunks of states; ring of {} x {}; {} on disk\n",
                    report.memory.host_record_slots, report.memory.record_chunks, report.memory.ring_slots,
                    format_bytes(report.memory.ring_slot_bytes), format_bytes(report.tier_bytes));
  }
  return text;
}

std::string links_text(const StepBenchReport& report) {
  TextTable table({"bytes per step", "moved", "least possible", "ratio", "per parameter"});
  for (const Link& link : kLinks) {
    const uint64_t moved = moved_per_step(report, link), least = report.bound.*link.least;
    table.add(
        {link.name, grouped(moved), grouped(least),
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

std::string rounds_json(const StepBenchReport& report) {
  std::string list;
  for (const StepRound& round : report.rounds) {
    const PartSeconds parts = parts_of(round);
    std::string shares;
    for (size_t p = 0; p < parts.size(); ++p)
      shares += fmt::format(R"({}"{}_seconds": {:.6f})", p == 0 ? "" : ", ", kParts[p].key, parts[p]);
    list += fmt::format(R"({}{{"seconds": {:.6f}, "cpu_seconds": {:.6f}, {}, "io_seconds": {:.6f}, )"
                        R"("io_cpu_seconds": {:.6f}}})",
                        list.empty() ? "" : ", ", round.seconds, round.cpu_seconds, shares, round.io_seconds,
                        round.io_cpu_seconds);
  }
  return "[" + list + "]";
}

std::string links_json(const StepBenchReport& report) {
  std::string list;
  for (const Link& link : kLinks) {
    const uint64_t moved = moved_per_step(report, link);
    list += fmt::format(R"({}"{}": {{"bytes": {}, "least_bytes": {}, "bytes_per_parameter": {:.6f}}})",
                        list.empty() ? "" : ", ", link.key, moved, report.bound.*link.least,
                        per_parameter(report, moved));
  }
  return "{" + list + "}";
}

std::string optional_json(const StepBenchReport& report) {
  if (!report.plan.against_io) return R"("against_io": null)";
  const Spread ratios = spread_of(report, ratio);
  return fmt::format(
      R"("against_io": {{"seconds": {:.6f}, "cpu_seconds": {:.6f}, "bytes_each_way": {}, "ratio": {:.6f}, )"
      R"("ratio_least": {:.6f}, "ratio_most": {:.6f}}})",
      spread_of(report, io_seconds).median, spread_of(report, io_cpu).median, report.stream_bytes,
      ratios.median, ratios.least, ratios.most);
}

uint64_t nvme_bytes(const StepBenchReport& report) {
  uint64_t bytes = 0;
  for (size_t l = kFirstNvmeLink; l < kLinks.size(); ++l) bytes += moved_per_step(report, kLinks[l]);
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
  std::string ledger;
  for (const TierUse& use : report.host_ledger)
    ledger += fmt::format("{}{}: {}", ledger.empty() ? "" : ", ", json_quoted(use.purpose), use.bytes);
  return fmt::format(
             R"({{"parameters": {}, "state_bytes_per_parameter": {}, "compact": {}, "chunk_elements": {}, "chunks": {}, "type": "{}", "optimizer": {}, )"
             R"("parameters_on": "{}", "states_on": "{}", "durable": {}, "checksums": {}, "threads": {}, )",
             report.plan.parameters, options.record_layout.tile_bytes() / kTileElements,
             options.record_layout.master == MasterForm::remainder, report.plan.chunk_elements, report.chunks,
             name_of(report.plan.type), json_quoted(report.plan.optimizer), name_of(options.parameters),
             name_of(options.states), options.durable, options.verify_checksums, report.threads) +
         fmt::format(R"("cached_chunks": {}, "host_bytes": {}, "host": {{{}}}, "device_bytes": {}, )"
                     R"("process_bytes": {}, "tier_bytes": {}, "nvme_bytes": {}, "links": {}, )",
                     report.memory.host_record_slots, report.memory.host_bytes, ledger, report.device_bytes,
                     report.process_bytes, report.tier_bytes, nvme_bytes(report), links_json(report)) +
         fmt::format(
             R"("update": "{}", "seconds": {:.6f}, "step_seconds": {:.6f}, "seconds_least": {:.6f}, "seconds_most": {:.6f}, "cpu_seconds": {:.6f}, )"
             R"("bound_by": "{}", {}, "rounds": {}}})"
             "\n",
             name_of(report.plan.update_mode), seconds.median, spread_of(report, whole_seconds).median,
             seconds.least, seconds.most, spread_of(report, update_cpu).median,
             key_of(measured_use(report).binding), optional_json(report), rounds_json(report));
}

}  // namespace terrace
