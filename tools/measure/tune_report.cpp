#include "measure/tune_report.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/units.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

constexpr double kGigabyte = 1e9;
constexpr size_t kBarWidth = 40;

double fastest(const std::vector<TunePoint>& points) {
  double best = 1;
  for (const TunePoint& point : points) best = std::max(best, point.bytes_per_second);
  return best;
}

std::string bar(double value, double best) {
  return std::string(static_cast<size_t>(value / best * static_cast<double>(kBarWidth) + 0.5), '#');
}

std::string curve_text(const TunedPath& path) {
  const double best = fastest(path.curve);
  std::string text = "  aio.block_size  aio.queue_depth    GB/s\n";
  for (const TunePoint& point : path.curve) {
    const bool chosen =
        point.block_bytes == path.tuning.block_bytes && point.queue_depth == path.tuning.queue_depth;
    text += fmt::format("  {:>14}  {:>15}  {:>6.2f}  {}{}\n", format_bytes(point.block_bytes),
                        point.queue_depth, point.bytes_per_second / kGigabyte,
                        bar(point.bytes_per_second, best), chosen ? " <- taken" : "");
  }
  return text;
}

std::string engines_text(const TunedPath& path) {
  if (path.engines.size() < 2) return "";
  std::string text = "  engines with this setting:\n";
  for (const TunePoint& point : path.engines)
    text +=
        fmt::format("  {:>14}  {:>15}  {:>6.2f}  {}\n", io::name_of(point.engine), "",
                    point.bytes_per_second / kGigabyte, bar(point.bytes_per_second, fastest(path.engines)));
  return text;
}

std::string path_text(const TunedPath& path) {
  const PathTuning& tuning = path.tuning;
  std::string text = fmt::format("{} (drive {})\n", path.name, tuning.place.device);
  text += fmt::format("  a file of {}; {} were written\n", format_bytes(path.file_bytes),
                      format_bytes(path.written_bytes));
  if (!path.direct_refusal.empty())
    text += fmt::format("  through the page cache, which says little: {}\n", path.direct_refusal);
  text += "  blocks of records read and written back, both directions together:\n";
  text += curve_text(path) + engines_text(path);
  text += fmt::format("  read {:.2f} GB/s, write {:.2f} GB/s, mixed {:.2f} GB/s\n",
                      tuning.read_bytes_per_second / kGigabyte, tuning.write_bytes_per_second / kGigabyte,
                      tuning.mixed_bytes_per_second / kGigabyte);
  if (!path.saved_as.empty()) text += fmt::format("  remembered in {}\n", path.saved_as);
  return text + "\n";
}

PathTuning all_together(const std::vector<TunedPath>& paths) {
  std::vector<PathTuning> tunings;
  for (const TunedPath& path : paths) tunings.push_back(path.tuning);
  return combined_tuning(tunings);
}

std::string points_json(const std::vector<TunePoint>& points) {
  std::string text;
  for (const TunePoint& point : points)
    text +=
        fmt::format(R"({}{{"engine": {}, "block_size": {}, "queue_depth": {}, "bytes_per_second": {:.0f}}})",
                    text.empty() ? "" : ", ", json_quoted(io::name_of(point.engine)), point.block_bytes,
                    point.queue_depth, point.bytes_per_second);
  return "[" + text + "]";
}

}  // namespace

std::string config_section(const PathTuning& tuning) {
  const std::string threads = tuning.engine == io::EngineKind::threads
                                  ? fmt::format(", \"intra_op_parallelism\": {}", tuning.thread_count)
                                  : "";
  return fmt::format(
      "{{\n  \"aio\": {{ \"block_size\": {}, \"queue_depth\": {}{} }},\n"
      "  \"terrace\": {{ \"engine\": {} }}\n}}\n",
      tuning.block_bytes, tuning.queue_depth, threads, json_quoted(io::name_of(tuning.engine)));
}

std::string tune_text(const std::vector<TunedPath>& paths) {
  std::string text;
  for (const TunedPath& path : paths) text += path_text(path);
  const bool all_saved =
      std::all_of(paths.begin(), paths.end(), [](const TunedPath& path) { return !path.saved_as.empty(); });
  text += all_saved
              ? "For the configuration; where that is silent, training on this machine does so by itself:\n"
              : "For the configuration:\n";
  return text + config_section(all_together(paths));
}

std::string tune_json(const std::vector<TunedPath>& paths) {
  std::string list;
  for (const TunedPath& path : paths) {
    const PathTuning& tuning = path.tuning;
    list += fmt::format(
        R"({}{{"path": {}, "device": {}, "file_bytes": {}, "written_bytes": {}, "direct": {}, )"
        R"("read_bytes_per_second": {:.0f}, "write_bytes_per_second": {:.0f}, )"
        R"("mixed_bytes_per_second": {:.0f}, "curve": {}, "engines": {}, "saved_as": {}}})",
        list.empty() ? "" : ", ", json_quoted(path.name), json_quoted(tuning.place.device), path.file_bytes,
        path.written_bytes, path.direct_refusal.empty(), tuning.read_bytes_per_second,
        tuning.write_bytes_per_second, tuning.mixed_bytes_per_second, points_json(path.curve),
        points_json(path.engines), path.saved_as.empty() ? "null" : json_quoted(path.saved_as));
  }
  return fmt::format("{{\"paths\": [{}], \"config\": {}}}\n", list, config_section(all_together(paths)));
}

}  // namespace terrace
