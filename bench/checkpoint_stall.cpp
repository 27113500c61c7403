// How long a checkpoint keeps training waiting: begun from a commit and copied while training goes on,
// against writing it while training waits, in turns. It judges nothing: it prints both, and their ratio.
//
//   checkpoint_stall NVME SAVE [ROUNDS [LAYERS [WIDTH]]]     two folders, on disks of the reader's choice
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/reference/trainer.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kContext = 32;

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

TrainerOptions options_of(const fs::path& nvme, uint32_t layers, uint32_t width) {
  const std::string path = nvme.string();
  const ConfigOverride overrides[] = {{"zero_optimization.offload_optimizer.device", "nvme", "the bench"},
                                      {"zero_optimization.offload_optimizer.nvme_path", path, "the bench"},
                                      {"zero_optimization.offload_param.device", "cpu", "the bench"},
                                      {"terrace.host_memory", "1GiB", "the bench"},
                                      {"terrace.device_memory", "1GiB", "the bench"},
                                      {"terrace.commit_every_seconds", "0", "the bench"}};
  TrainerOptions options;
  options.config = default_train_config(overrides);
  options.model = model_preset("gpt2");
  options.model.layers = layers;
  options.model.width = width;
  options.model.heads = width / 64;
  options.model.context = kContext;
  options.model.vocabulary = 256;
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Round {
  double copied_ms = 0;   // while training waits
  double blocked_ms = 0;  // begun, and looked after between steps, until it was complete
  double flush_ms = 0;    // the step thread waiting for the commit's writes
  double steps = 0;       // until it was complete
  double step_ms = 0, busy_step_ms = 0;
};

double ms(uint64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

Round measure(Trainer& trainer, const fs::path& save, Log& log) {
  const CheckpointFolder waits(save / "waited", log), meanwhile(save / "meanwhile", log);
  const SteadyClock clock;
  Round round;
  trainer.step();
  uint64_t start = clock.now_ns();
  trainer.save(waits);
  round.copied_ms = ms(clock.now_ns() - start);
  round.step_ms = ms(trainer.step().total_ns);

  const uint64_t waited = trainer.offloader().report().counters().commit_wait_ns;
  start = clock.now_ns();
  bool complete = trainer.begin_save(meanwhile).checkpoint.has_value();
  uint64_t blocked = clock.now_ns() - start;
  while (!complete) {
    const StepReport report = trainer.step();
    round.busy_step_ms += ms(report.total_ns - report.keeping_ns);
    ++round.steps;
    start = clock.now_ns();
    complete = trainer.look_after_state().checkpoint.has_value();
    blocked += clock.now_ns() - start;
  }
  round.busy_step_ms /= std::max(round.steps, 1.0);
  round.blocked_ms = ms(blocked);
  round.flush_ms = ms(trainer.offloader().report().counters().commit_wait_ns - waited);
  fs::remove_all(save / "waited");
  fs::remove_all(save / "meanwhile");
  return round;
}

int run(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "checkpoint_stall NVME SAVE [ROUNDS [LAYERS [WIDTH]]]\n");
    return 2;
  }
  const auto number = [&](int index, unsigned long otherwise) {
    return argc > index ? std::strtoul(argv[index], nullptr, 10) : otherwise;
  };
  const unsigned long rounds = std::max(number(3, 5), 1UL);
  const TrainerOptions options =
      options_of(argv[1], static_cast<uint32_t>(number(4, 8)), static_cast<uint32_t>(number(5, 512)));
  OpenTokens tokens;
  tokens.train = std::make_unique<Numbers>();
  const TrainingData data(std::move(tokens), {kContext, options.config.terrace.seed, 0});
  StderrLog log;
  Trainer trainer(options, data, log);
  fmt::print("{} of states, {} of {} chunks of them cached\n", format_bytes(trainer.plan().state_bytes),
             trainer.plan().memory.host_record_slots, trainer.plan().memory.record_chunks);
  std::vector<double> copied, blocked, flush, step, busy;
  for (unsigned long r = 0; r <= rounds; ++r) {
    const Round round = measure(trainer, argv[2], log);
    if (r == 0) continue;  // files and caches are warm from here on
    fmt::print(
        "round {}: copied {:.1f} ms; begun and looked after {:.3f} ms, waited for the flush {:.3f} ms, {} "
        "steps of {:.1f} ms (alone {:.1f} ms)\n",
        r, round.copied_ms, round.blocked_ms, round.flush_ms, round.steps, round.busy_step_ms, round.step_ms);
    copied.push_back(round.copied_ms);
    blocked.push_back(round.blocked_ms);
    flush.push_back(round.flush_ms);
    step.push_back(round.step_ms);
    busy.push_back(round.busy_step_ms);
  }
  fmt::print(
      "medians of {}: copying {:.1f} ms; blocking {:.3f} ms = {:.2f} %; flush {:.3f} ms; a step alone {:.1f} "
      "ms, beside the copy {:.1f} ms\n",
      rounds, median(copied), median(blocked), 100 * median(blocked) / median(copied), median(flush),
      median(step), median(busy));
  trainer.offloader().commits().keep_tier(false);
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  try {
    return terrace::run(argc, argv);
  } catch (const terrace::Error& error) {
    fmt::print(stderr, "checkpoint_stall: {}\n", error.what());
    return 1;
  }
}
