#include "measure/bench_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>

#include "measure/measuring.h"
#include "text_table.h"

namespace terrace {
namespace {

// The percentiles are those of fio.
constexpr std::array kPercentiles = {1.0,  5.0,  10.0, 20.0, 30.0, 40.0, 50.0,  60.0, 70.0,
                                     80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99};

double per_second(double amount, const IoReport& report) {
  const double seconds = io_seconds(report);
  return seconds > 0 ? amount / seconds : 0;
}

double cpu_per_gigabyte(const IoReport& report) {
  const uint64_t bytes = moved_bytes(report);
  return bytes > 0 ? cpu_seconds(report) / (static_cast<double>(bytes) / kGigabyte) : 0;
}

void write_latency(JsonWriter& json, std::string_view key, const io::LatencyHistogram& latency,
                   bool with_percentiles) {
  json.begin_object(key).members({{"min", latency.min_ns()}, {"max", latency.max_ns()}});
  json.members({{"mean", json_fixed(latency.mean_ns(), 6)}, {"stddev", json_fixed(latency.stddev_ns(), 6)}});
  json.member("N", latency.count());
  if (with_percentiles) {
    json.begin_object("percentile");
    for (const double percent : kPercentiles)
      json.member(fmt::format("{:.6f}", percent), latency.percentile_ns(percent));
    json.end();
  }
  json.end();
}

void write_direction(JsonWriter& json, std::string_view key, const io::StreamDirection& direction,
                     const IoReport& report) {
  const double bytes_per_second = per_second(static_cast<double>(direction.bytes), report);
  const uint64_t runtime_ms = direction.operations == 0 ? 0 : report.outcome.result.elapsed_ns / 1'000'000;
  json.begin_object(key).member("io_bytes", direction.bytes).member("io_kbytes", direction.bytes / kKiB);
  json.member("bw_bytes", json_fixed(bytes_per_second, 0))
      .member("bw", json_fixed(bytes_per_second / kKiB, 0));
  json.member("iops", json_fixed(per_second(static_cast<double>(direction.operations), report), 6));
  json.members({{"runtime", runtime_ms}, {"total_ios", direction.operations}});
  write_latency(json, "slat_ns", direction.submission, false);
  write_latency(json, "clat_ns", direction.completion, true);
  write_latency(json, "lat_ns", direction.total, false);
  json.end();
}

std::string direction_text(const char* name, const io::StreamDirection& direction, const IoReport& report) {
  if (direction.operations == 0) return "";
  const io::LatencyHistogram& latency = direction.completion;
  const auto at = [&](double percent) { return format_duration(latency.percentile_ns(percent)); };
  return fmt::format("{:<6} {:.3f} GB/s, {:.0f} blocks per second, {} in {}\n", name,
                     per_second(static_cast<double>(direction.bytes), report) / kGigabyte,
                     per_second(static_cast<double>(direction.operations), report),
                     format_bytes(direction.bytes), format_duration(report.outcome.result.elapsed_ns)) +
         fmt::format("       latency: mean {}, 50 % {}, 90 % {}, 99 % {}, 99.9 % {}, most {}\n",
                     format_duration(static_cast<uint64_t>(latency.mean_ns())), at(50), at(90), at(99),
                     at(99.9), format_duration(latency.max_ns()));
}

// Options are written as texts, as fio does.
void write_options(JsonWriter& json, const IoReport& report) {
  json.begin_object("job options")
      .members({{"name", report.plan.job_name}, {"filename", report.plan.file.string()}});
  json.member("rw", report.plan.rw).member("bs", std::to_string(report.plan.stream.block_bytes));
  json.member("iodepth", std::to_string(report.depth))
      .member("size", std::to_string(report.plan.stream.region_bytes));
  json.member("direct", report.direct ? "1" : "0")
      .member("ioengine", io::name_of(report.plan.engine.kind))
      .end();
}

void write_own(JsonWriter& json, const IoReport& report) {
  const io::EngineStats& stats = report.outcome.stats;
  const double rate = per_second(static_cast<double>(moved_bytes(report)), report) / kGigabyte;
  json.begin_object("terrace").member("gb_per_second", json_fixed(rate, 6));
  json.member("cpu_seconds", json_fixed(cpu_seconds(report), 6));
  json.member("cpu_seconds_per_gb", json_fixed(cpu_per_gigabyte(report), 6));
  json.member("ring_bytes", report.plan.stream.block_bytes * report.depth).member("pieces", stats.pieces);
  json.member("registered_pieces", stats.registered_pieces);
  json.member("registered_file_pieces", stats.registered_file_pieces);
  json.members({{"submit_calls", stats.submit_calls}, {"short_transfers", stats.short_transfers}});
  json.member("retries", stats.retries);
  json.member("registration_refusal", json_text_or_null(report.outcome.registration_refusal)).end();
}

const SweepCell* find_cell(const std::vector<SweepCell>& cells, uint64_t ring, uint64_t block) {
  const auto found = std::find_if(cells.begin(), cells.end(), [&](const SweepCell& cell) {
    return cell.ring_bytes == ring && cell.block_bytes == block;
  });
  return found == cells.end() ? nullptr : &*found;
}

// The table has rings as rows and blocks as columns.
std::string sweep_table(const std::vector<SweepCell>& cells,
                        FunctionRef<std::string(const SweepCell&)> text) {
  std::vector<std::string> headings = {"ring"};
  for (const uint64_t block : kSweptBlocks) headings.push_back(format_bytes(block));
  TextTable table(headings);
  for (const uint64_t ring : kSweptRings) {
    std::vector<std::string> row = {format_bytes(ring)};
    for (const uint64_t block : kSweptBlocks) {
      const SweepCell* cell = find_cell(cells, ring, block);
      row.push_back(cell == nullptr ? "-" : text(*cell));
    }
    table.add(row);
  }
  return table.text();
}

}  // namespace

std::string io_report_text(const IoReport& report) {
  const io::StreamResult& result = report.outcome.result;
  std::string text =
      direction_text("read", result.read, report) + direction_text("write", result.write, report);
  if (result.read.operations > 0 && result.write.operations > 0)
    text += fmt::format("{:<6} {:.3f} GB/s\n", "both",
                        per_second(static_cast<double>(moved_bytes(report)), report) / kGigabyte);
  text += fmt::format("{:<6} {:.4f} s per GB (user {}, system {})\n", "cpu", cpu_per_gigabyte(report),
                      format_duration(result.user_ns), format_duration(result.system_ns));
  text += fmt::format("{:<6} {} in flight of {}, {}; {}\n", "ring", report.depth,
                      format_bytes(report.plan.stream.block_bytes),
                      report.direct ? "direct" : "through the page cache",
                      report.outcome.registration_refusal.empty()
                          ? "memory and file registered"
                          : "not all registered: " + report.outcome.registration_refusal);
  return text + fmt::format("{:<6} {}\n", "engine", report.plan.engine_reason);
}

std::string io_report_json(const IoReport& report) {
  const io::StreamResult& result = report.outcome.result;
  const auto percent = [&](uint64_t ns) {
    return result.elapsed_ns == 0 ? 0
                                  : 100.0 * static_cast<double>(ns) / static_cast<double>(result.elapsed_ns);
  };
  JsonWriter json;
  json.begin_object().members({{"terrace version", TERRACE_VERSION}, {"timestamp", std::time(nullptr)}});
  json.begin_list("jobs").begin_object().members({{"jobname", report.plan.job_name}, {"error", 0}});
  json.member("elapsed", (result.elapsed_ns + 999'999'999) / 1'000'000'000);
  write_options(json, report);
  write_direction(json, "read", result.read, report);
  write_direction(json, "write", result.write, report);
  json.member("job_runtime", result.elapsed_ns / 1'000'000);
  json.member("usr_cpu", json_fixed(percent(result.user_ns), 6));
  json.member("sys_cpu", json_fixed(percent(result.system_ns), 6)).member("ctx", result.context_switches);
  json.members({{"majf", result.major_faults}, {"minf", result.minor_faults}});
  write_own(json, report);
  return json.end().end().end().take() + "\n";
}

std::string sweep_text(const IoPlan& plan, const std::vector<SweepCell>& cells) {
  const auto best = std::max_element(cells.begin(), cells.end(), [](const SweepCell& a, const SweepCell& b) {
    return a.bytes_per_second < b.bytes_per_second;
  });
  std::string text = fmt::format("GB/s of --rw {}, by ring and block\n", plan.rw);
  text += sweep_table(
      cells, [](const SweepCell& cell) { return fmt::format("{:.2f}", cell.bytes_per_second / 1e9); });
  text += "\nprocessor seconds per GB\n";
  text += sweep_table(
      cells, [](const SweepCell& cell) { return fmt::format("{:.4f}", cell.cpu_seconds_per_byte * 1e9); });
  if (best == cells.end()) return text;
  return text + fmt::format("\nmost: {:.2f} GB/s with a ring of {} in blocks of {}\n",
                            best->bytes_per_second / 1e9, format_bytes(best->ring_bytes),
                            format_bytes(best->block_bytes));
}

std::string sweep_json(const IoPlan& plan, const std::vector<SweepCell>& cells) {
  JsonWriter json;
  json.begin_object().member("rw", plan.rw).list("sizes", cells, [&](const SweepCell& cell) {
    json.begin_object().members({{"ring_bytes", cell.ring_bytes}, {"block_bytes", cell.block_bytes}});
    json.member("gb_per_second", json_fixed(cell.bytes_per_second / 1e9, 6));
    json.member("cpu_seconds_per_gb", json_fixed(cell.cpu_seconds_per_byte * 1e9, 6)).end();
  });
  return json.end().take() + "\n";
}

}  // namespace terrace
