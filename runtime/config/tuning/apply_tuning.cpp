// What was measured, in a configuration that is silent.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/runtime/config/tuning/tuning.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders_of(const PlacementConfig& placement) {
  std::vector<fs::path> folders;
  if (placement.parameters == Placement::nvme) folders = placement.parameter_paths;
  if (placement.states != Placement::nvme) return folders;
  for (const fs::path& path : placement.state_paths) {
    if (std::find(folders.begin(), folders.end(), path) == folders.end()) folders.push_back(path);
  }
  return folders;
}

// What was taken, in words: "aio.block_size 524288, aio.queue_depth 16".
std::string take_settings(const PathTuning& tuning, TrainConfig& config) {
  std::string taken;
  const auto take = [&taken](auto& value, auto measured, std::string_view key, const std::string& shown) {
    if (value) return;
    value = measured;
    taken += fmt::format("{}{} {}", taken.empty() ? "" : ", ", key, shown);
  };
  // Blocks and depths were found with one engine: they say nothing of another.
  const io::EngineKind engine = io::choose_engine(config.terrace.engine).kind;
  if (engine != tuning.engine) {
    if (config.terrace.engine || !io::probe_engine(tuning.engine).works) return taken;
    take(config.terrace.engine, tuning.engine, "terrace.engine", std::string(io::name_of(tuning.engine)));
  }
  take(config.aio.block_bytes, tuning.block_bytes, "aio.block_size", std::to_string(tuning.block_bytes));
  take(config.aio.queue_depth, tuning.queue_depth, "aio.queue_depth", std::to_string(tuning.queue_depth));
  if (tuning.engine == io::EngineKind::threads)
    take(config.aio.thread_count, tuning.thread_count, "aio.intra_op_parallelism",
         std::to_string(tuning.thread_count));
  return taken;
}

}  // namespace

void apply_tuning(const fs::path& folder, TrainConfig& config, Log& log) {
  std::vector<PathTuning> tunings;
  const std::vector<fs::path> paths = folders_of(config.placement);
  for (const fs::path& path : paths) {
    try {
      std::string why_not;
      const std::optional<PathTuning> found = find_tuning(folder, find_tuned_place(path), why_not);
      if (!why_not.empty()) {
        log.warning(fmt::format("what `terrace tune` measured of {} is not used: {}; measure again",
                                path.string(), why_not));
      }
      if (!found) continue;
      tunings.push_back(*found);
      config.placement.measured_rates[path] = found->mixed_bytes_per_second;
    } catch (const Error&) {
      // The run examines its folders itself, and says what is wrong with them.
    }
  }
  if (tunings.empty()) return;
  std::string line = fmt::format("measured by `terrace tune` on {}:", tunings.front().measured_at);
  for (const fs::path& path : paths) {
    const auto rate = config.placement.measured_rates.find(path);
    if (rate != config.placement.measured_rates.end())
      line += fmt::format(" {} {:.2f} GB/s,", path.string(), rate->second * 1e-9);
  }
  line.pop_back();
  if (tunings.size() == paths.size()) {
    const std::string taken = take_settings(combined_tuning(tunings), config);
    if (!taken.empty()) line += "; " + taken;
  }
  log.info(line);
}

}  // namespace terrace
