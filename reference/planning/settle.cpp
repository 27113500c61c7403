#include <terrace/reference/planning/settle.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/reference/planning/link_rates.h>
#include <terrace/reference/planning/machine_rates.h>
#include <terrace/runtime/config/compute_threads.h>
#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/config/tuning/tuning.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRatio = "zero_optimization.offload_optimizer.ratio";
constexpr std::string_view kGds = "aio.use_gds";
constexpr std::string_view kMeasuredHere = "measured on this machine";
constexpr std::string_view kFound = "found on this machine";

// What a key is from now on, and how that was found, behind who left it open.
void show(TrainConfig& config, std::string_view key, std::string value, std::string_view how,
          std::string note = "") {
  const auto line = std::ranges::find(config.resolved, key, &ResolvedValue::key);
  if (line == config.resolved.end()) return;
  line->value = std::move(value);
  line->origin = line->origin == "default" ? std::string(how) : fmt::format("{}, {}", line->origin, how);
  line->note = std::move(note);
}

void settle_device(TrainConfig& config, const ComputeDevice* compute) {
  if (config.terrace.device != DeviceChoice::automatic) return;
  const bool on_gpu = compute != nullptr;
  config.terrace.device = on_gpu ? DeviceChoice::cuda : DeviceChoice::simulated;
  show(config, "terrace.device", json_quoted(on_gpu ? "cuda" : "simulated"), kFound);
}

// --- What `terrace tune` measured ---

// Takes the rates of the folders that were measured.
std::vector<PathTuning> find_tunings(const fs::path& tuning_folder, const std::vector<fs::path>& folders,
                                     PlacementConfig& placement, Log& log) {
  std::vector<PathTuning> tunings;
  for (const fs::path& folder : folders) {
    try {
      std::string why_not;
      const std::optional<PathTuning> found = find_tuning(tuning_folder, find_tuned_place(folder), why_not);
      if (!why_not.empty()) {
        log.warning(fmt::format("what `terrace tune` measured of {} is not used: {}; measure again",
                                folder.string(), why_not));
      }
      if (!found) continue;
      tunings.push_back(*found);
      placement.measured_rates[folder] = found->mixed_bytes_per_second;
    } catch (const Error&) {
      // The run examines its folders itself, and says what is wrong with them.
    }
  }
  return tunings;
}

// "from the tuning in FILE, FILE"
std::string files_of(const fs::path& tuning_folder, const std::vector<PathTuning>& tunings) {
  std::string text = "from the tuning in";
  for (const PathTuning& tuning : tunings)
    text += (&tuning == tunings.data() ? " " : ", ") + tuning_file(tuning_folder, tuning.place).string();
  return text;
}

// Returns what was taken, in words: "aio.block_size 524288, aio.queue_depth 16".
std::string take_settings(const PathTuning& tuning, std::string_view origin, TrainConfig& config) {
  std::string taken;
  const auto take = [&](auto& value, auto measured, std::string_view key, const std::string& literal,
                        std::string_view in_words) {
    if (value) return;
    value = measured;
    show(config, key, literal, origin);
    taken += fmt::format("{}{} {}", taken.empty() ? "" : ", ", key, in_words);
  };
  const auto take_number = [&](auto& value, auto measured, std::string_view key) {
    const std::string number = std::to_string(measured);
    take(value, measured, key, number, number);
  };
  // Blocks and depths were found with one engine: they say nothing of another.
  if (io::choose_engine(config.terrace.engine).kind != tuning.engine) {
    if (config.terrace.engine || !io::probe_engine(tuning.engine).works) return taken;
    const std::string_view name = io::name_of(tuning.engine);
    take(config.terrace.engine, tuning.engine, "terrace.engine", json_quoted(name), name);
  }
  take_number(config.aio.block_bytes, tuning.block_bytes, "aio.block_size");
  take_number(config.aio.queue_depth, tuning.queue_depth, "aio.queue_depth");
  if (tuning.engine == io::EngineKind::threads)
    take_number(config.aio.thread_count, tuning.thread_count, "aio.intra_op_parallelism");
  return taken;
}

void settle_io(TrainConfig& config, const fs::path& tuning_folder, Log& log) {
  const std::vector<fs::path> folders = tier_paths(config.placement);
  const std::vector<PathTuning> tunings = find_tunings(tuning_folder, folders, config.placement, log);
  if (tunings.empty()) return;
  std::string line = fmt::format("measured by `terrace tune` on {}:", tunings.front().measured_at);
  for (const fs::path& folder : folders) {
    const auto rate = config.placement.measured_rates.find(folder);
    if (rate != config.placement.measured_rates.end())
      line += fmt::format(" {} {:.2f} GB/s,", folder.string(), rate->second * 1e-9);
  }
  line.pop_back();
  if (tunings.size() == folders.size()) {
    const std::string taken =
        take_settings(combined_tuning(tunings), files_of(tuning_folder, tunings), config);
    if (!taken.empty()) line += "; " + taken;
  }
  log.info(line);
}

// --- Whether the device reads parameters by itself ---

void settle_file_reads(TrainConfig& config, const ComputeDevice* compute, Log& log) {
  const FileReads wanted = config.aio.file_reads;
  config.aio.file_reads = FileReads::off;
  if (wanted == FileReads::off || config.placement.parameters != Placement::nvme) return;
  const SimulatedCompute simulated;
  const ComputeDevice& device = compute != nullptr ? *compute : simulated;
  const std::string reason = device.why_no_file_reads(config.placement.parameter_paths);
  if (reason.empty()) config.aio.file_reads = FileReads::on;
  if (wanted == FileReads::on && !reason.empty()) {
    throw Error(
        ErrorKind::config,
        {"the device cannot read parameters on nvme by itself, as wanted by", std::string(kGds), reason,
         "see `terrace report`, or set aio.use_gds to auto, which goes through host memory where it "
         "must, or to false"});
  }
  if (wanted == FileReads::on) return;
  show(config, kGds, reason.empty() ? "true" : "false", kFound, reason);
  if (!reason.empty()) log.warning("aio.use_gds is auto, and parameters go through host memory: " + reason);
}

// --- Who updates ---

UpdateRates measure_sides(const TrainConfig& config, const ComputeDevice& compute) {
  const PlacementConfig& placement = config.placement;
  Workers workers = make_compute_threads(config.terrace);
  // Records in host memory are updated by all threads, what streams from nvme by one.
  const bool together = placement.states == Placement::cpu;
  const bool locks = placement.pin_parameters && placement.pin_states;
  return {.processor_elements = measure_update_rate(rate_question(config), together, workers),
          .link_bytes = measure_link_rates(compute, locks, workers).each_way,
          .nvme_bytes =
              placement.states == Placement::nvme ? measured_rate(placement, placement.state_paths) : 0};
}

std::string rates_text(const UpdateRates& rates) {
  std::string text =
      fmt::format("the processor updates {:.3g} G elements/s, and the link carries {:.3g} GB/s each way",
                  rates.processor_elements * 1e-9, rates.link_bytes * 1e-9);
  if (rates.nvme_bytes > 0)
    text += fmt::format(", the drives {:.3g} GB/s both ways together", rates.nvme_bytes * 1e-9);
  return text;
}

void settle_sides(TrainConfig& config, const RunMachine& machine) {
  PlacementConfig& placement = config.placement;
  std::string& found = placement.sides_origin;
  placement.update_rates.reset();
  found.clear();
  if (!placement.measures_sides) return;
  std::string how(kFound);
  if (row_of(config.optimizer.type).kind == OptimizerKind::muon) {
    found = "Muon multiplies matrices on the processor";
    how = "because of optimizer.type";
  } else if (config.terrace.update == UpdateMode::next_forward) {
    found = "updates run in the next forward, in which the device has no part";
    how = "because of terrace.update";
  } else if (!facts_of(machine.compute).own_memory) {
    found = "the simulated device computes with the processor's own threads";
  } else {
    placement.update_rates = measure_sides(config, *machine.compute);
    found = rates_text(*placement.update_rates);
    how = kMeasuredHere;
  }
  // Rates decide chunk by chunk, in the plan.
  const std::string value =
      placement.update_rates ? json_quoted("auto") : fmt::format("{}", placement.processor_share);
  show(config, kRatio, value, how, found);
}

}  // namespace

TrainConfig settle(TrainConfig config, const RunMachine& machine, Log& log) {
  settle_device(config, machine.compute);
  settle_io(config, machine.tuning, log);
  settle_file_reads(config, machine.compute, log);
  settle_sides(config, machine);
  return config;
}

double measured_rate(const PlacementConfig& placement, std::span<const fs::path> folders) {
  double sum = 0;
  for (const fs::path& folder : folders) {
    const auto rate = placement.measured_rates.find(folder);
    if (rate == placement.measured_rates.end()) return 0;
    sum += rate->second;
  }
  return sum;
}

std::string update_sides_text(const TrainConfig& config, const TrainingSetup& setup) {
  if (config.placement.sides_origin.empty()) return "";
  const TrainerPlan& plan = setup.plan;
  std::string text = fmt::format("offload_optimizer.ratio is auto: {}: ", config.placement.sides_origin);
  if (const uint32_t chunks = plan.memory.device_update_chunks(); chunks > 0) {
    return text + fmt::format(
                      "the processor updates {:.1f} % of the bytes of optimizer states, the device "
                      "{:.1f} %, in {} chunks",
                      100 * plan.processor_share, 100 - 100 * plan.processor_share, chunks);
  }
  text += "the processor updates all";
  const std::optional<UpdateRates>& rates = config.placement.update_rates;
  if (!rates) return text;
  if (!setup.offload.update_rates) return text + ": the device has no memory to take part";
  const double record = static_cast<double>(setup.offload.record_layout.tile_bytes()) / kTileElements;
  if (rates->nvme_bytes > 0 && rates->processor_elements * 2 * record >= rates->nvme_bytes)
    text += ": the drives are slower than the processor alone";
  return text;
}

}  // namespace terrace
