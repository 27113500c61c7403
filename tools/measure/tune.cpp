// `terrace tune`: finds the fastest file I/O settings for the paths that training streams over, and remembers
// them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include <terrace/aio/engine.h>
#include <terrace/base/units.h>
#include <terrace/runtime/observe/log/log_lines.h>

#include "command_line.h"
#include "console.h"
#include "measure/measuring.h"
#include "measure/tune_measure.h"
#include "measure/tune_report.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTuneExamples =
    "Examples:\n"
    "  terrace tune --nvme-path /mnt/nvme\n"
    "  terrace tune --nvme-path /mnt/a --nvme-path /mnt/b --size 64GiB --seconds 60 --json\n";

constexpr std::array<uint64_t, 3> kBlocks = {256 * kKiB, 512 * kKiB, kMiB};
constexpr std::array<uint32_t, 5> kDepths = {4, 8, 16, 32, 64};
// Each round measures all settings, so that a drive that drifts is unfair to none.
constexpr uint32_t kRounds = 2;
constexpr uint32_t kEngineRounds = 4;
// Among settings nearly as fast as the fastest, the one with the fewest and largest pieces is taken.
constexpr double kNearlyAsFast = 0.98;
// Another engine must be this much faster than the one that training takes by itself.
constexpr double kWorthAnotherEngine = 1.1;

// These are the parts of --seconds.
constexpr double kFillPart = 0.25;
constexpr double kCurvePart = 0.4;
constexpr double kEnginesPart = 0.15;
constexpr double kRatesPart = 0.2;

constexpr uint64_t kLargestDefaultFile = 16 * kGiB;
constexpr uint64_t kShareOfFree = 4;

io::EngineOptions engine_options(const TunePoint& point) {
  io::EngineOptions options;
  options.kind = point.engine;
  options.block_bytes = point.block_bytes;
  options.queue_depth = point.queue_depth;
  return options;
}

const TunePoint& best_of(const std::vector<TunePoint>& curve) {
  double fastest = 0;
  for (const TunePoint& point : curve) fastest = std::max(fastest, point.bytes_per_second);
  const TunePoint* best = nullptr;
  for (const TunePoint& point : curve) {
    if (point.bytes_per_second < fastest * kNearlyAsFast) continue;
    if (best == nullptr || point.queue_depth < best->queue_depth ||
        (point.queue_depth == best->queue_depth && point.block_bytes > best->block_bytes))
      best = &point;
  }
  return *best;
}

class Tune final : public Subcommand {
 public:
  explicit Tune(Command& app)
      : Subcommand(app, "tune",
                   "Find the fastest file I/O settings for folders, and remember them for training") {
    const FlagGroup group(command_);
    group.texts("--nvme-path", "DIR", paths_,
                "A folder that training will use; given several times, each is measured by itself");
    group.text("--size", "SIZE", size_,
               "Of the file that is measured with, enough to pass the drive's write cache (default: a "
               "quarter of what is free, at most 16GiB, and no more than is written in time)");
    group.number("--seconds", 1, 3600, seconds_, "How long to measure a folder, about (default 20)");
    group.text("--engine", "auto|io_uring|libaio|threads", engine_,
               "Measure with this engine alone (default auto)");
    group.yes("--no-save", no_save_, "Do not remember the result for training");
    group.yes("--json", json_, "Print the result as JSON");
    command_.footer(kTuneExamples);
  }

  int run() override;

 private:
  void step(const std::string& text) {
    if (console_.is_terminal()) console_.progress(text);
  }
  uint64_t part_ns(double part) const { return static_cast<uint64_t>(seconds_ * part * 1e9); }
  uint64_t file_bytes(const fs::path& path) const;
  void require_paths() const;
  TunedPath measure(const std::string& path, io::EngineKind engine);
  void measure_curve(TuneMeasure& measure, TunedPath& tuned);
  void compare_engines(TuneMeasure& measure, TunedPath& tuned);
  void save(TunedPath& tuned);

  std::vector<std::string> paths_;
  std::string size_;
  std::string engine_ = "auto";
  double seconds_ = 20;
  bool no_save_ = false;
  bool json_ = false;
  Console console_;
};

void Tune::require_paths() const {
  if (paths_.empty()) refuse_missing("--nvme-path", "name the folder that training will use");
  std::set<fs::path> seen;
  for (const std::string& path : paths_) {
    require_folder("--nvme-path", path);
    if (!seen.insert(fs::canonical(path)).second)
      refuse("--nvme-path " + path, "it is given twice", "name each folder once");
  }
}

uint64_t Tune::file_bytes(const fs::path& path) const {
  const uint64_t free = io::free_bytes_at(path);
  const uint64_t bytes =
      size_.empty() ? std::min(free / kShareOfFree, kLargestDefaultFile) : parse_bytes(size_, "--size");
  const uint64_t least = TuneMeasure::least_bytes();
  if (!size_.empty() && bytes < least)
    refuse("--size " + size_, "nothing can be measured with so little",
           "give at least " + format_bytes(least));
  if (bytes >= least && bytes <= free) return bytes;
  throw Error(ErrorKind::capacity, {"there is too little space to measure with in", path.string(),
                                    fmt::format("{} are free, and {} are needed", format_bytes(free),
                                                format_bytes(size_.empty() ? least * kShareOfFree : bytes)),
                                    "free space there, or give a smaller --size"});
}

void Tune::measure_curve(TuneMeasure& measure, TunedPath& tuned) {
  for (const uint64_t block : kBlocks) {
    for (const uint32_t depth : kDepths) tuned.curve.push_back({tuned.tuning.engine, block, depth, 0});
  }
  const auto runs = static_cast<double>(tuned.curve.size() * kRounds);
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < tuned.curve.size(); ++i) {
      TunePoint& point = tuned.curve[i];
      step(fmt::format("{}: setting {} of {}, round {} of {}", tuned.name, i + 1, tuned.curve.size(),
                       round + 1, kRounds));
      point.bytes_per_second +=
          measure.rate(io::StreamKind::update, engine_options(point), part_ns(kCurvePart / runs)) / kRounds;
    }
  }
}

// Measures all engines by turns, at the best setting of the engine that training takes by itself.
void Tune::compare_engines(TuneMeasure& measure, TunedPath& tuned) {
  const TunePoint best = best_of(tuned.curve);
  tuned.tuning.block_bytes = best.block_bytes;
  tuned.tuning.queue_depth = best.queue_depth;
  tuned.tuning.thread_count = io::EngineOptions{}.thread_count;
  for (const io::EngineKind kind : io::engine_kinds()) {
    if (kind == best.engine || (engine_ == "auto" && io::probe_engine(kind).works))
      tuned.engines.push_back({kind, best.block_bytes, best.queue_depth, 0});
  }
  if (tuned.engines.size() < 2) return;
  step(fmt::format("{}: engines", tuned.name));
  const auto runs = static_cast<double>(tuned.engines.size() * kEngineRounds);
  double expected = 0;
  for (uint32_t round = 0; round < kEngineRounds; ++round) {
    for (TunePoint& point : tuned.engines) {
      point.bytes_per_second +=
          measure.rate(io::StreamKind::update, engine_options(point), part_ns(kEnginesPart / runs)) /
          kEngineRounds;
      if (point.engine == best.engine) expected = point.bytes_per_second;
    }
  }
  for (const TunePoint& point : tuned.engines) {
    if (point.bytes_per_second <= expected * kWorthAnotherEngine) continue;
    tuned.tuning.engine = point.engine;
    expected = point.bytes_per_second;
  }
}

TunedPath Tune::measure(const std::string& path, io::EngineKind engine) {
  TunedPath tuned;
  tuned.name = path;
  tuned.tuning.place = find_tuned_place(path);
  tuned.tuning.engine = engine;
  TuneMeasure measure(path, file_bytes(path), console_);
  tuned.direct_refusal = measure.direct() ? "" : measure.direct_refusal();
  console_.progress(
      fmt::format("{}: writing up to {} to measure with", path, format_bytes(measure.region_bytes())));
  measure.fill(engine_options({engine, kMiB, kDepths.back(), 0}), part_ns(kFillPart));
  measure_curve(measure, tuned);
  compare_engines(measure, tuned);
  const io::EngineOptions chosen =
      engine_options({tuned.tuning.engine, tuned.tuning.block_bytes, tuned.tuning.queue_depth, 0});
  step(fmt::format("{}: reading, writing and both", path));
  const uint64_t each_ns = part_ns(kRatesPart / 3);
  tuned.tuning.read_bytes_per_second = measure.rate(io::StreamKind::read, chosen, each_ns);
  tuned.tuning.write_bytes_per_second = measure.rate(io::StreamKind::write, chosen, each_ns);
  tuned.tuning.mixed_bytes_per_second = measure.rate(io::StreamKind::update, chosen, each_ns);
  tuned.tuning.measured_at = utc_now();
  tuned.file_bytes = measure.region_bytes();
  tuned.written_bytes = measure.written_bytes();
  return tuned;
}

void Tune::save(TunedPath& tuned) {
  const fs::path folder = tuning_folder();
  if (folder.empty()) {
    console_.warning("neither XDG_CACHE_HOME nor HOME is set: the result is not remembered");
    return;
  }
  try {
    save_tuning(folder, tuned.tuning);
    tuned.saved_as = tuning_file(folder, tuned.tuning.place).string();
  } catch (const Error& error) {
    console_.warning(fmt::format("the result is not remembered: {}", error.in(Door::program)));
  }
}

int Tune::run() {
  require_paths();
  const io::EngineChoice choice = engine_of_flag("--engine", engine_);
  for (const std::string& path : paths_) file_bytes(path);
  console_.info(choice.reason);
  return print_measurement(console_, [&] {
    std::vector<TunedPath> tuned;
    for (const std::string& path : paths_) tuned.push_back(measure(path, choice.kind));
    console_.end_progress();
    if (!no_save_) {
      for (TunedPath& path : tuned) save(path);
    }
    return json_ ? tune_json(tuned) : tune_text(tuned);
  });
}

}  // namespace

std::unique_ptr<Subcommand> add_tune(Command& app) {
  return std::make_unique<Tune>(app);
}

}  // namespace terrace
