// When the update of a step had better run: trains a model whose states stream over a drive of a limited rate
// in every mode, in turns, and prints a timeline of each, how much of the disk's time it hides of what
// arithmetic says it can, and whether the mode that terrace.update "auto" takes is the fastest one. It judges
// nothing.
//
//   update_modes NVME [ROUNDS [LAYERS [WIDTH [SCENE]]]]     a folder on a disk that is faster than 1 GB/s; a
//   scene by its number from 1, without it all of them
//
// What can be hidden: all of the time in which the update waits for the disk after backward, as far as the
// pass beside it lasts, less the part of the states that no pass can hide
// (reference/planning/update_choice.h). The rate is chosen from a first run without a limit, so that disk
// and computation take the time that a scene says.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/reference/fault_spec.h>
#include <terrace/reference/planning/update_choice.h>
#include <terrace/reference/trainer.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kContext = 256;
constexpr uint32_t kStepsPerTurn = 4;  // the first of which is not counted
constexpr std::array kModes = {UpdateMode::after_backward, UpdateMode::next_forward,
                               UpdateMode::during_backward};

struct Scene {
  const char* name;
  const char* states;
  double disk_per_compute;  // the disk's time of an update by that of all computation; 0: no limit
  const char* clipping;
  const char* accumulation;
};

constexpr std::array kScenes = {
    Scene{"as much disk as computation, clipped", "nvme", 1.0, "1.0", "1"},
    Scene{"as much disk as computation, not clipped", "nvme", 1.0, "0", "1"},
    Scene{"a quarter of that disk time, clipped", "nvme", 0.25, "1.0", "1"},
    Scene{"four micro-batches, not clipped", "nvme", 0.5, "0", "4"},
    Scene{"states in host memory", "cpu", 0, "1.0", "1"},
};

class Numbers final : public TokenSource {
 public:
  uint64_t token_count() const override { return 100'000; }
  void read(uint64_t first, std::span<int32_t> tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((first + i) * 31 % 251);
  }
  uint32_t vocabulary() const override { return 256; }
  uint64_t fingerprint() const override { return 1; }
  std::string description() const override { return "numbers"; }
  fs::path path() const override { return "numbers"; }
};

struct Size {
  fs::path nvme;
  uint32_t layers;
  uint32_t width;
};

TrainerOptions options_of(const Scene& scene, const Size& size, const std::string& update,
                          const std::string& host_memory) {
  std::vector<ConfigOverride> overrides = {
      {"zero_optimization.offload_optimizer.device", scene.states, "the bench"},
      {"zero_optimization.offload_param.device", "cpu", "the bench"},
      {"bf16.enabled", "true", "the bench"},
      {"gradient_clipping", scene.clipping, "the bench"},
      {"gradient_accumulation_steps", scene.accumulation, "the bench"},
      {"train_micro_batch_size_per_gpu", "2", "the bench"},
      {"terrace.chunk_elements", "262144", "the bench"},
      {"terrace.update", update, "the bench"},
      {"terrace.host_memory", host_memory, "the bench"},
      {"terrace.device_memory", "1GiB", "the bench"}};
  if (std::string(scene.states) == "nvme") {
    overrides.push_back({"zero_optimization.offload_optimizer.nvme_path", size.nvme.string(), "the bench"});
    overrides.push_back({"terrace.durable", "false", "the bench"});
  }
  TrainerOptions options;
  options.config = default_train_config(overrides);
  options.model = model_preset("gpt2");
  options.model.layers = size.layers;
  options.model.width = size.width;
  options.model.heads = size.width / 64;
  options.model.context = kContext;
  options.model.vocabulary = 256;
  return options;
}

// The least host memory, so that every record streams.
std::string least_host_memory(const Scene& scene, const Size& size) {
  const TrainingSetup setup = plan_training(options_of(scene, size, "after_backward", "2GiB"));
  return fmt::format("{}", setup.plan.memory.host_minimum_bytes);
}

// A trainer over a drive of `bytes_per_second` (0: as it is), with what must outlive it.
struct Run {
  Run(const TrainerOptions& options, double bytes_per_second)
      : data(tokens(), {kContext, options.config.terrace.seed, 0}) {
    TrainingSetup setup = plan_training(options);
    if (bytes_per_second > 0) {
      plan = std::make_unique<io::FaultPlan>(std::vector<io::Fault>{
          parse_fault_spec(fmt::format("rate={}B/s", static_cast<uint64_t>(bytes_per_second)))});
      setup.offload.hooks.decorate_engine = engines_with_faults(*plan);
    }
    trainer = std::make_unique<Trainer>(options, std::move(setup), data, log);
  }
  static OpenTokens tokens() {
    OpenTokens open;
    open.train = std::make_unique<Numbers>();
    return open;
  }
  StderrLog log;
  TrainingData data;
  std::unique_ptr<io::FaultPlan> plan;
  std::unique_ptr<Trainer> trainer;
};

double seconds(uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds of one step in one mode, medians of the rounds.
struct ModeTimes {
  std::vector<double> total, forward, backward, update, disk_wait;
  void add(const StepReport& report) {
    total.push_back(seconds(report.total_ns));
    forward.push_back(seconds(report.forward_ns));
    backward.push_back(seconds(report.forward_backward_ns - report.forward_ns));
    update.push_back(seconds(report.update_ns));
    disk_wait.push_back(seconds(report.moved.update_wait_ns));
  }
};

// One row per chunk from the beginning of its update to the end of the step after it: r its states are read,
// n an operation asks for them, u its parameters are new.
void print_timeline(std::span<const ChunkTimes> times, uint64_t begin_ns, uint64_t end_ns) {
  constexpr uint64_t kColumns = 72;
  constexpr size_t kRows = 14;  // at most so many chunks are shown, equally spaced
  const size_t stride = times.size() / kRows + 1;
  for (size_t row_chunk = 0; row_chunk < times.size(); row_chunk += stride) {
    const ChunkTimes& chunk = times[row_chunk];
    std::string row(kColumns, '.');
    const auto mark = [&](uint64_t at_ns, char sign) {
      if (at_ns < begin_ns || at_ns > end_ns || end_ns == begin_ns) return;
      row[std::min(kColumns - 1, (at_ns - begin_ns) * kColumns / (end_ns - begin_ns))] = sign;
    };
    mark(chunk.needed_ns, 'n');
    mark(chunk.updated_ns, 'u');
    mark(chunk.read_ns, 'r');
    fmt::print("    chunk {:>3} |{}|\n", static_cast<uint32_t>(chunk.chunk), row);
  }
  fmt::print("    {:>9} |0{:>{}.2f} s|\n", "", seconds(end_ns - begin_ns), kColumns - 3);
}

std::string bar(const char* name, double value, double per_column) {
  return fmt::format("    {:<10} {:>7.3f} s {}\n", name, value,
                     std::string(static_cast<size_t>(std::max(value, 0.0) / per_column), '#'));
}

// Two steps in the mode, the second of which ends what the first one began.
void show(Trainer& trainer, UpdateMode mode) {
  const SteadyClock clock;
  trainer.offloader().set_update_mode(mode);
  trainer.step();
  const uint64_t begin = clock.now_ns();
  const StepReport first = trainer.step();
  // After backward and during it the update is over by now; in the next forward it has begun just now.
  const uint64_t update_begin =
      mode == UpdateMode::next_forward ? clock.now_ns() - first.update_ns : begin + first.forward_ns;
  const StepReport second = mode == UpdateMode::next_forward ? trainer.step() : first;
  const uint64_t end = clock.now_ns();
  fmt::print("  {}: step {}\n", name_of(mode), second.step);
  const double column = seconds(first.total_ns) / 50;
  fmt::print("{}{}{}{}{}", bar("forward", seconds(second.forward_ns), column),
             bar("backward", seconds(second.forward_backward_ns - second.forward_ns), column),
             bar("update", seconds(second.update_ns), column),
             bar("disk wait", seconds(second.moved.update_wait_ns), column),
             bar("fetch wait", seconds(second.moved.fetch_wait_ns), column));
  print_timeline(trainer.offloader().report().last_update_times(), update_begin, end);
}

UpdateMode take_automatically(const Scene& scene, const Size& size, const std::string& host_memory,
                              double rate) {
  Run run(options_of(scene, size, "auto", host_memory), rate);
  const uint32_t steps = 2 + UpdateChoice::kMeasuredSteps + UpdateChoice::kJudgedSteps;
  for (uint32_t s = 0; s < steps; ++s) run.trainer->step();
  run.trainer->finish_update();
  return run.trainer->update_mode();
}

void print_hidden(const char* pass, double pass_seconds, const ModeTimes& after, const ModeTimes& mode,
                  const UpdateRules& rules) {
  const double wait = median(after.disk_wait);
  const double can = std::min(pass_seconds / rules.accumulation_steps, wait * (1 - rules.embedding_part));
  const double hides = median(after.total) - median(mode.total);
  fmt::print("  of {:.3f} s of waiting for the disk {} can hide {:.3f} s, and hides {:.3f} s: {:.0f} %\n",
             wait, pass, can, hides, can > 0 ? 100 * hides / can : 0.0);
}

void play(const Scene& scene, const Size& size, unsigned long rounds) {
  const std::string host_memory = least_host_memory(scene, size);
  const TrainerOptions options = options_of(scene, size, "after_backward", host_memory);
  double rate = 0;
  if (scene.disk_per_compute > 0) {
    Run free(options, 0);
    ModeTimes times;
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < kStepsPerTurn; ++s) {
      const StepReport report = free.trainer->step();
      if (s > 0) times.add(report);
      bytes = report.moved.record_read_bytes + report.moved.record_write_bytes;
    }
    const double compute = median(times.total) - median(times.disk_wait);
    rate = static_cast<double>(bytes) / (scene.disk_per_compute * compute);
    fmt::print("{}: {:.3f} s of computation, {} per update over a drive of {:.0f} MB/s\n", scene.name,
               compute, format_bytes(bytes), rate * 1e-6);
  } else {
    fmt::print("{}\n", scene.name);
  }

  Run run(options, rate);
  std::map<UpdateMode, ModeTimes> modes;
  for (unsigned long r = 0; r < rounds; ++r) {
    for (const UpdateMode mode : kModes) {
      run.trainer->offloader().set_update_mode(mode);
      for (uint32_t s = 0; s < kStepsPerTurn; ++s) {
        const StepReport report = run.trainer->step();
        if (s > 0) modes[mode].add(report);
      }
      run.trainer->finish_update();
    }
  }
  UpdateMode fastest = UpdateMode::after_backward;
  for (const UpdateMode mode : kModes) {
    const ModeTimes& times = modes[mode];
    fmt::print("  {:<16} {:.3f} s per step: forward {:.3f}, backward {:.3f}, update {:.3f}\n", name_of(mode),
               median(times.total), median(times.forward), median(times.backward), median(times.update));
    if (median(times.total) < median(modes[fastest].total)) fastest = mode;
  }
  const ModeTimes& after = modes[UpdateMode::after_backward];
  const UpdateRules rules = update_rules(options.config, plan_training(options));
  if (rate > 0) {
    print_hidden("next_forward", median(after.forward), after, modes[UpdateMode::next_forward], rules);
    if (!rules.clips)
      print_hidden("during_backward", median(after.backward), after, modes[UpdateMode::during_backward],
                   rules);
    for (const UpdateMode mode : kModes) show(*run.trainer, mode);
  }
  run.trainer.reset();
  const UpdateMode taken = take_automatically(scene, size, host_memory, rate);
  fmt::print("  fastest {}, auto takes {}, which is {:.1f} % slower than the fastest\n\n", name_of(fastest),
             name_of(taken), 100 * (median(modes[taken].total) / median(modes[fastest].total) - 1));
}

int run(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "update_modes NVME [ROUNDS [LAYERS [WIDTH [SCENE]]]]\n");
    return 2;
  }
  const auto number = [&](int index, unsigned long otherwise) {
    return argc > index ? std::max(std::strtoul(argv[index], nullptr, 10), 1UL) : otherwise;
  };
  const Size size{argv[1], static_cast<uint32_t>(number(3, 6)), static_cast<uint32_t>(number(4, 384))};
  const size_t only = argc > 5 ? number(5, 1) : 0;
  for (size_t s = 0; s < kScenes.size(); ++s) {
    if (only == 0 || only == s + 1) play(kScenes[s], size, number(2, 3));
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  try {
    return terrace::run(argc, argv);
  } catch (const terrace::Error& error) {
    fmt::print(stderr, "update_modes: {}\n", error.what());
    return 1;
  }
}
