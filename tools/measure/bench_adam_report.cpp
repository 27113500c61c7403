#include "measure/bench_adam_report.h"

#include <fmt/format.h>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>

#include "measure/spread.h"
#include "text_table.h"

namespace terrace {
namespace {

// Line: the results of one instruction set with one number of threads.
struct Line {
  Spread ns_per_parameter;
  double bytes_per_second = 0;
  Spread share;  // share of the bandwidth of the best simple kernel, round by round
};

// Returns the simple kernel with the highest median.
size_t best_streams(const AdamThreads& result) {
  size_t best = 0;
  for (size_t which = 1; which < kStreamCounts.size(); ++which) {
    if (spread_of(result.stream_bytes_per_second[which]).median >
        spread_of(result.stream_bytes_per_second[best]).median)
      best = which;
  }
  return best;
}

Line line_of(const AdamPlan& plan, const AdamThreads& result, size_t set) {
  const auto elements = static_cast<double>(plan.elements);
  const std::vector<double>& streams = result.stream_bytes_per_second[best_streams(result)];
  std::vector<double> ns, shares;
  for (size_t round = 0; round < streams.size(); ++round) {
    const double seconds = result.kernel_seconds[set][round];
    ns.push_back(seconds / elements * 1e9);
    shares.push_back(elements * plan.bytes_per_parameter() / seconds / streams[round]);
  }
  const Spread spread = spread_of(ns);
  return {spread, plan.bytes_per_parameter() / spread.median * 1e9, spread_of(shares)};
}

const char* form_text(const AdamPlan& plan) {
  return plan.layout.master == MasterForm::remainder ? "compact state" : "whole masters";
}

}  // namespace

std::string adam_report_text(const AdamPlan& plan, const std::vector<AdamThreads>& results) {
  std::string text = fmt::format(
      "{} parameters, {}: {} gradients, {} parameters{}, {} in {}, {}\n", grouped(plan.elements),
      plan.optimizer, name_of(plan.gradient_type), name_of(plan.parameter_type),
      plan.over_gradients() ? " over them" : "",
      plan.layout.moment_count == 1 ? "1 moment" : fmt::format("{} moments", plan.layout.moment_count),
      name_of(plan.layout.moment_type), form_text(plan));
  text += fmt::format("{:.0f} bytes read and written per parameter, {} of memory; medians of {} rounds\n\n",
                      plan.bytes_per_parameter(), format_bytes(plan.memory_bytes()), plan.rounds);
  TextTable table({"threads, instructions", "ns per parameter", "least", "most", "GB/s",
                   "of read-modify-write", "least", "most"});
  for (const AdamThreads& result : results) {
    for (size_t set = 0; set < plan.sets.size(); ++set) {
      const Line line = line_of(plan, result, set);
      table.add(
          {fmt::format("{}{}, {}", result.threads, result.bound > 0 ? " bound" : "", name_of(plan.sets[set])),
           fmt::format("{:.4f}", line.ns_per_parameter.median),
           fmt::format("{:.4f}", line.ns_per_parameter.least),
           fmt::format("{:.4f}", line.ns_per_parameter.most),
           fmt::format("{:.1f}", line.bytes_per_second / 1e9), percent_text(line.share.median, 1),
           percent_text(line.share.least, 1), percent_text(line.share.most, 1)});
    }
  }
  text += table.text() + "\n";
  TextTable streams({"read-modify-write, GB/s", "1 stream", "3 streams", "4 streams"});
  for (const AdamThreads& result : results) {
    std::vector<std::string> cells = {
        fmt::format("{} thread{}", result.threads, result.threads == 1 ? "" : "s")};
    for (const std::vector<double>& speeds : result.stream_bytes_per_second)
      cells.push_back(fmt::format("{:.1f}", spread_of(speeds).median / 1e9));
    streams.add(std::move(cells));
  }
  return text + streams.text();
}

std::string adam_report_json(const AdamPlan& plan, const std::vector<AdamThreads>& results) {
  JsonWriter json;
  json.begin_object().members({{"parameters", plan.elements}, {"optimizer", plan.optimizer}});
  json.member("gradient_type", name_of(plan.gradient_type));
  json.member("parameter_type", name_of(plan.parameter_type));
  json.member("moments", plan.layout.moment_count).member("moment_type", name_of(plan.layout.moment_type));
  json.member("compact_state", plan.layout.master == MasterForm::remainder);
  json.member("bytes_per_parameter", json_fixed(plan.bytes_per_parameter(), 1));
  json.members({{"memory_bytes", plan.memory_bytes()}, {"rounds", plan.rounds}}).begin_list("results");
  for (const AdamThreads& result : results) {
    for (size_t set = 0; set < plan.sets.size(); ++set) {
      const Line line = line_of(plan, result, set);
      json.begin_object().members({{"threads", result.threads}, {"bound_threads", result.bound}});
      json.member("instruction_set", name_of(plan.sets[set]));
      write_spread(json, "ns_per_parameter", line.ns_per_parameter);
      json.member("bytes_per_second", json_fixed(line.bytes_per_second, 0));
      write_spread(json, "share_of_read_modify_write", line.share);
      json.begin_object("read_modify_write_bytes_per_second");
      for (size_t which = 0; which < kStreamCounts.size(); ++which)
        json.member(std::to_string(kStreamCounts[which]),
                    json_fixed(spread_of(result.stream_bytes_per_second[which]).median, 0));
      json.end().end();
    }
  }
  return json.end().end().take() + "\n";
}

}  // namespace terrace
