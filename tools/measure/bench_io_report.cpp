#include "measure/bench_io_report.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

#include <terrace/base/units.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

constexpr double kGigabyte = 1e9;
constexpr double kNs = 1e-9;

// Those of fio.
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

std::string latency_json(const io::LatencyHistogram& latency, bool with_percentiles) {
  std::string percentiles;
  for (size_t i = 0; with_percentiles && i < kPercentiles.size(); ++i)
    percentiles += fmt::format("{}\"{:.6f}\": {}", i == 0 ? ", \"percentile\": {" : ", ", kPercentiles[i],
                               latency.percentile_ns(kPercentiles[i]));
  if (with_percentiles) percentiles += "}";
  return fmt::format(R"({{"min": {}, "max": {}, "mean": {:.6f}, "stddev": {:.6f}, "N": {}{}}})",
                     latency.min_ns(), latency.max_ns(), latency.mean_ns(), latency.stddev_ns(),
                     latency.count(), percentiles);
}

std::string direction_json(const io::StreamDirection& direction, const IoReport& report) {
  const double bytes_per_second = per_second(static_cast<double>(direction.bytes), report);
  const uint64_t milliseconds = direction.operations == 0 ? 0 : report.result.elapsed_ns / 1'000'000;
  return fmt::format(
      R"({{"io_bytes": {}, "io_kbytes": {}, "bw_bytes": {:.0f}, "bw": {:.0f}, "iops": {:.6f}, "runtime": {}, )"
      R"("total_ios": {}, "slat_ns": {}, "clat_ns": {}, "lat_ns": {}}})",
      direction.bytes, direction.bytes / kKiB, bytes_per_second, bytes_per_second / kKiB,
      per_second(static_cast<double>(direction.operations), report), milliseconds, direction.operations,
      latency_json(direction.submission, false), latency_json(direction.completion, true),
      latency_json(direction.total, false));
}

std::string direction_text(const char* name, const io::StreamDirection& direction, const IoReport& report) {
  if (direction.operations == 0) return "";
  const io::LatencyHistogram& latency = direction.completion;
  const auto at = [&](double percent) { return format_duration(latency.percentile_ns(percent)); };
  return fmt::format("{:<6} {:.3f} GB/s, {:.0f} blocks per second, {} in {}\n", name,
                     per_second(static_cast<double>(direction.bytes), report) / kGigabyte,
                     per_second(static_cast<double>(direction.operations), report),
                     format_bytes(direction.bytes), format_duration(report.result.elapsed_ns)) +
         fmt::format("       latency: mean {}, 50 % {}, 90 % {}, 99 % {}, 99.9 % {}, most {}\n",
                     format_duration(static_cast<uint64_t>(latency.mean_ns())), at(50), at(90), at(99),
                     at(99.9), format_duration(latency.max_ns()));
}

std::string options_json(const IoReport& report) {
  return fmt::format(
      R"({{"name": {}, "filename": {}, "rw": {}, "bs": "{}", "iodepth": "{}", "size": "{}", "direct": "{}", )"
      R"("ioengine": {}}})",
      json_quoted(report.job_name), json_quoted(report.file), json_quoted(report.rw), report.block_bytes,
      report.depth, report.region_bytes, report.direct ? 1 : 0, json_quoted(report.engine));
}

std::string own_json(const IoReport& report) {
  const io::EngineStats& stats = report.stats;
  return fmt::format(
      R"({{"gb_per_second": {:.6f}, "cpu_seconds": {:.6f}, "cpu_seconds_per_gb": {:.6f}, "ring_bytes": {}, )"
      R"("pieces": {}, "registered_pieces": {}, "registered_file_pieces": {}, "submit_calls": {}, )"
      R"("short_transfers": {}, "retries": {}, "registration_refusal": {}}})",
      per_second(static_cast<double>(moved_bytes(report)), report) / kGigabyte, cpu_seconds(report),
      cpu_per_gigabyte(report), report.block_bytes * report.depth, stats.pieces, stats.registered_pieces,
      stats.registered_file_pieces, stats.submit_calls, stats.short_transfers, stats.retries,
      report.registration_refusal.empty() ? "null" : json_quoted(report.registration_refusal));
}

}  // namespace

double io_seconds(const IoReport& report) {
  return static_cast<double>(report.result.elapsed_ns) * kNs;
}

double cpu_seconds(const IoReport& report) {
  return static_cast<double>(report.result.user_ns + report.result.system_ns) * kNs;
}

uint64_t moved_bytes(const IoReport& report) {
  return report.result.read.bytes + report.result.write.bytes;
}

std::string io_report_text(const IoReport& report) {
  const io::StreamResult& result = report.result;
  std::string text =
      direction_text("read", result.read, report) + direction_text("write", result.write, report);
  if (result.read.operations > 0 && result.write.operations > 0)
    text += fmt::format("{:<6} {:.3f} GB/s\n", "both",
                        per_second(static_cast<double>(moved_bytes(report)), report) / kGigabyte);
  text += fmt::format("{:<6} {:.4f} s per GB (user {}, system {})\n", "cpu", cpu_per_gigabyte(report),
                      format_duration(result.user_ns), format_duration(result.system_ns));
  text +=
      fmt::format("{:<6} {} in flight of {}, {}; {}\n", "ring", report.depth,
                  format_bytes(report.block_bytes), report.direct ? "direct" : "through the page cache",
                  report.registration_refusal.empty() ? "memory and file registered"
                                                      : "not all registered: " + report.registration_refusal);
  return text + fmt::format("{:<6} {}\n", "engine", report.engine_reason);
}

std::string io_report_json(const IoReport& report) {
  const io::StreamResult& result = report.result;
  const auto percent = [&](uint64_t ns) {
    return result.elapsed_ns == 0 ? 0
                                  : 100.0 * static_cast<double>(ns) / static_cast<double>(result.elapsed_ns);
  };
  return fmt::format(
      R"({{"terrace version": "{}", "timestamp": {}, "jobs": [{{"jobname": {}, "error": 0, "elapsed": {}, )"
      R"("job options": {}, "read": {}, "write": {}, "job_runtime": {}, "usr_cpu": {:.6f}, )"
      R"("sys_cpu": {:.6f}, "ctx": {}, "majf": {}, "minf": {}, "terrace": {}}}]}})"
      "\n",
      TERRACE_VERSION, static_cast<long long>(std::time(nullptr)), json_quoted(report.job_name),
      (result.elapsed_ns + 999'999'999) / 1'000'000'000, options_json(report),
      direction_json(result.read, report), direction_json(result.write, report),
      result.elapsed_ns / 1'000'000, percent(result.user_ns), percent(result.system_ns),
      result.context_switches, result.major_faults, result.minor_faults, own_json(report));
}

}  // namespace terrace
