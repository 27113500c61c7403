#include "measure/bench_copy.h"

#include <fmt/format.h>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>

#include "measure/measuring.h"
#include "text_table.h"

namespace terrace {
namespace {

// DirectionNames: the names of a direction for people and for programs, in the order of CopyDirections.
struct DirectionNames {
  const char* words;
  const char* key;
};
constexpr std::array<DirectionNames, kCopyDirections.size()> kNames = {
    DirectionNames{"to device", "to_device"}, DirectionNames{"to host", "to_host"},
    DirectionNames{"both at once", "both"}};

const DirectionNames& names_of(CopyDirections directions) {
  return kNames[static_cast<size_t>(directions)];
}

// Returns the streams' speeds over the plain ones, round by round.
Spread ratios_of(const CopyMeasurement& measured) {
  std::vector<double> ratios;
  for (size_t round = 0; round < measured.plain_bytes_per_second.size(); ++round)
    ratios.push_back(measured.stream_bytes_per_second[round] / measured.plain_bytes_per_second[round]);
  return spread_of(std::move(ratios));
}

std::string gb(double bytes_per_second) {
  return fmt::format("{:.2f}", bytes_per_second / 1e9);
}

}  // namespace

std::string copy_report_text(const CopyBenchPlan& plan, const CopyBenchResult& result) {
  std::string text = fmt::format(
      "copies of the device tier's streams beside {}, {}\n"
      "medians of {} rounds, GB/s; both at once: the sum\n",
      plan.gpu != nullptr ? "the driver's alone (cuMemcpyHtoDAsync, cuMemcpyDtoHAsync)" : "plain memcpy",
      plan.gpu != nullptr ? result.device : "simulated device: no link is crossed", plan.copies.rounds);
  if (plan.gpu != nullptr && !result.page_locked)
    text += "nothing here is of page-locked memory, because locking was refused\n";
  TextTable table({"a copy", "each way", "host memory", "direction", "streams", "least", "most", "plain",
                   "least", "most", "streams/plain", "least", "most"});
  for (const CopyMeasurement& measured : result.measurements) {
    const Spread streams = spread_of(measured.stream_bytes_per_second);
    const Spread plain = spread_of(measured.plain_bytes_per_second);
    const Spread ratios = ratios_of(measured);
    table.add({format_bytes(measured.bytes), format_bytes(measured.bytes * measured.count), measured.memory,
               names_of(measured.directions).words, gb(streams.median), gb(streams.least), gb(streams.most),
               gb(plain.median), gb(plain.least), gb(plain.most), fmt::format("{:.3f}", ratios.median),
               fmt::format("{:.3f}", ratios.least), fmt::format("{:.3f}", ratios.most)});
  }
  return text + "\n" + table.text();
}

std::string copy_report_json(const CopyBenchPlan& plan, const CopyBenchResult& result) {
  JsonWriter json;
  json.begin_object().members({{"device", result.device}, {"simulated", plan.gpu == nullptr}});
  json.members({{"page_locked", result.page_locked}, {"buffer_bytes", plan.copies.buffer_bytes}});
  json.member("rounds", plan.copies.rounds);
  json.list("results", result.measurements, [&](const CopyMeasurement& measured) {
    json.begin_object().member("bytes", measured.bytes);
    json.member("moved_bytes", measured.bytes * measured.count).member("host_memory", measured.memory);
    json.member("direction", names_of(measured.directions).key);
    write_spread(json, "streams_bytes_per_second", spread_of(measured.stream_bytes_per_second), 0);
    write_spread(json, "plain_bytes_per_second", spread_of(measured.plain_bytes_per_second), 0);
    write_spread(json, "streams_over_plain", ratios_of(measured), 4);
    json.end();
  });
  return json.end().take() + "\n";
}

}  // namespace terrace
