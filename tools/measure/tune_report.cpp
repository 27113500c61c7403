#include "measure/tune_report.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>

#include "measure/measuring.h"

namespace terrace {
namespace {

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

void write_points(JsonWriter& json, std::string_view key, const std::vector<TunePoint>& points) {
  json.list(key, points, [&](const TunePoint& point) {
    json.begin_object().member("engine", io::name_of(point.engine));
    json.members({{"block_size", point.block_bytes}, {"queue_depth", point.queue_depth}});
    json.member("bytes_per_second", json_fixed(point.bytes_per_second, 0)).end();
  });
}

}  // namespace

std::string config_section(const PathTuning& tuning) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).begin_object("aio");
  json.members({{"block_size", tuning.block_bytes}, {"queue_depth", tuning.queue_depth}});
  if (tuning.engine == io::EngineKind::threads) json.member("intra_op_parallelism", tuning.thread_count);
  json.end().object("terrace", {{"engine", io::name_of(tuning.engine)}});
  return json.end().take() + "\n";
}

std::string tune_text(const std::vector<TunedPath>& paths) {
  std::string text;
  for (const TunedPath& path : paths) text += path_text(path);
  const bool all_saved =
      std::all_of(paths.begin(), paths.end(), [](const TunedPath& path) { return !path.saved_as.empty(); });
  text += all_saved
              ? "For the configuration; training on this machine uses these values where it sets no others:\n"
              : "For the configuration:\n";
  return text + config_section(all_together(paths));
}

std::string tune_json(const std::vector<TunedPath>& paths) {
  JsonWriter json;
  json.begin_object().list("paths", paths, [&](const TunedPath& path) {
    const PathTuning& tuning = path.tuning;
    json.begin_object().members({{"path", path.name}, {"device", tuning.place.device}});
    json.members({{"file_bytes", path.file_bytes}, {"written_bytes", path.written_bytes}});
    json.member("direct", path.direct_refusal.empty());
    json.member("read_bytes_per_second", json_fixed(tuning.read_bytes_per_second, 0));
    json.member("write_bytes_per_second", json_fixed(tuning.write_bytes_per_second, 0));
    json.member("mixed_bytes_per_second", json_fixed(tuning.mixed_bytes_per_second, 0));
    write_points(json, "curve", path.curve);
    write_points(json, "engines", path.engines);
    json.member("saved_as", json_text_or_null(path.saved_as)).end();
  });
  return json.member("config", json_raw(config_section(all_together(paths)))).end().take() + "\n";
}

}  // namespace terrace
