// A Trainer of a tiny model on numbers, with what must outlive it, for the tests of the trainer.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/runtime/train/checkpoint/checkpoint.h>
#include <terrace/runtime/train/trainer.h>

#include "offload/toy_training.h"

namespace terrace::trainer_tests {

namespace fs = std::filesystem;

inline constexpr uint32_t kContext = 8;

class Numbers final : public TokenSource {
 public:
  explicit Numbers(uint64_t fingerprint) : fingerprint_(fingerprint) {}
  uint64_t token_count() const override { return 400; }
  void read(uint64_t first, std::span<int32_t> tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((first + i) * (first + i) % 13);
  }
  uint32_t vocabulary() const override { return 13; }
  uint64_t fingerprint() const override { return fingerprint_; }
  std::string description() const override { return "numbers"; }
  fs::path path() const override { return "numbers"; }

 private:
  uint64_t fingerprint_;
};

struct RunOptions {
  fs::path nvme;           // empty: nothing is on nvme
  std::string parameters;  // where they live; empty: on the device
  std::string device_memory = "16MiB";
  std::string host_memory = "64MiB";
  std::string seed = "42";
  std::string commit_every_steps = "0";
  std::string commit_every_seconds = "0";
  std::string retained = "0";
  std::string durable = "true";
  std::string chunk_elements = "4096";
  std::string precision = "false";  // of bf16
  std::string update = "after_backward";
  std::string optimizer = "AdamW";
  std::string bf16_moments = "false";
  std::string compact = "false";
  std::string clipping = "1";
  std::string accumulation = "1";
  std::string activations = "none";  // where they are offloaded to
  uint32_t layers = 2;
  std::string order = "batch";
  std::string ratio = "1";                                 // of updates by the processor
  std::optional<UpdateRates> update_rates = std::nullopt;  // as if they had been measured
  uint64_t data = 1;
  double validation_fraction = 0;
  TierStart start = TierStart::fresh;
  bool discard = false;  // what an earlier run left
  const Clock* clock = nullptr;
  fs::path system_root = "/";
  std::string memory_pressure = "true";
  std::string preset = "gpt2";
  std::vector<ConfigOverride> more = {};
  const ComputeDevice* compute = nullptr;  // null: the simulated device
  bool reads_past_host = false;            // parameters on nvme, by the device itself
  std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> decorate = nullptr;
  // Takes the place of the model that the configuration makes.
  std::function<std::unique_ptr<Model>(std::unique_ptr<Model>)> model = nullptr;
};

inline TrainerOptions options_of(const RunOptions& run) {
  std::vector<ConfigOverride> overrides = {{"terrace.threads", "1", "a test"},
                                           {"terrace.device_memory", run.device_memory, "a test"},
                                           {"terrace.host_memory", run.host_memory, "a test"},
                                           {"terrace.seed", run.seed, "a test"},
                                           {"bf16.enabled", run.precision, "a test"},
                                           {"terrace.update", run.update, "a test"},
                                           {"optimizer.type", run.optimizer, "a test"},
                                           {"gradient_clipping", run.clipping, "a test"},
                                           {"gradient_accumulation_steps", run.accumulation, "a test"},
                                           {"terrace.compact_state", run.compact, "a test"},
                                           {"terrace.microbatch_order", run.order, "a test"},
                                           {"zero_optimization.offload_optimizer.ratio", run.ratio, "a test"},
                                           {"terrace.chunk_elements", run.chunk_elements, "a test"}};
  if (run.bf16_moments == "true") overrides.push_back({"bf16.bf16_optimizer_states", "true", "a test"});
  if (!run.parameters.empty())
    overrides.push_back({"zero_optimization.offload_param.device", run.parameters, "a test"});
  if (run.parameters == "cpu" && run.nvme.empty())
    overrides.push_back({"zero_optimization.offload_optimizer.device", "cpu", "a test"});
  if (run.parameters == "nvme")
    overrides.push_back({"zero_optimization.offload_param.nvme_path", run.nvme.string(), "a test"});
  if (!run.nvme.empty()) {
    overrides.push_back({"zero_optimization.offload_optimizer.device", "nvme", "a test"});
    overrides.push_back({"zero_optimization.offload_optimizer.nvme_path", run.nvme.string(), "a test"});
    overrides.push_back({"terrace.durable", run.durable, "a test"});
    overrides.push_back({"terrace.memory_pressure", run.memory_pressure, "a test"});
    overrides.push_back({"terrace.commit_every_steps", run.commit_every_steps, "a test"});
    overrides.push_back({"terrace.commit_every_seconds", run.commit_every_seconds, "a test"});
    overrides.push_back({"terrace.retained_checkpoints", run.retained, "a test"});
  }
  overrides.push_back({"terrace.offload_activations", run.activations, "a test"});
  overrides.insert(overrides.end(), run.more.begin(), run.more.end());
  TrainerOptions options;
  options.config = default_train_config(overrides);
  options.model = model_preset(run.preset);
  options.model.layers = run.layers;
  options.model.heads = 2;
  options.model.width = 32;
  options.model.context = kContext;
  options.model.vocabulary = 13;
  if (run.preset != "gpt2") options.model.key_value_heads = 1, options.model.head_size = 16;
  if (run.preset != "gpt2") options.model.hidden = 48, options.model.positions = kContext;
  options.tier_start = run.start;
  options.discard_epochs = run.discard;
  options.clock = run.clock;
  options.system_root = run.system_root;
  options.compute = run.compute;
  options.config.placement.update_rates = run.update_rates;
  if (run.reads_past_host) {
    options.config.aio.file_reads = FileReads::on;
    options.config.terrace.verify_checksums = false;
  }
  return options;
}

// A trainer with what must outlive it.
struct TrainerRun {
  explicit TrainerRun(const RunOptions& run)
      : options(options_of(run)),
        data(tokens(run.data), {kContext, options.config.terrace.seed, run.validation_fraction}),
        trainer(make(run)) {}

  static OpenTokens tokens(uint64_t fingerprint) {
    OpenTokens open;
    open.train = std::make_unique<Numbers>(fingerprint);
    return open;
  }
  std::vector<double> train(uint64_t steps) {
    std::vector<double> losses;
    for (uint64_t s = 0; s < steps; ++s) losses.push_back(trainer->step().loss);
    return losses;
  }

  // Open from the first time on that it is asked for.
  const CheckpointFolder& saves_in(const fs::path& folder) {
    std::unique_ptr<CheckpointFolder>& saves = saves_[folder];
    if (saves == nullptr) saves = std::make_unique<CheckpointFolder>(folder, log);
    return *saves;
  }

  // As a checkpoint holds it.
  std::vector<std::byte> state() {
    std::vector<std::byte> bytes;
    trainer->offloader().export_records(
        [&](std::span<const std::byte> tiles) { bytes.insert(bytes.end(), tiles.begin(), tiles.end()); });
    return bytes;
  }

  MemoryLog log;
  std::map<fs::path, std::unique_ptr<CheckpointFolder>> saves_;
  TrainerOptions options;
  TrainingData data;
  std::unique_ptr<Trainer> trainer;

 private:
  std::unique_ptr<Trainer> make(const RunOptions& run) {
    if (!run.model && !run.decorate) return std::make_unique<Trainer>(options, data, log);
    TrainingSetup setup = plan_training(options);
    setup.offload.decorate_engine = run.decorate;
    if (run.model) setup.model = run.model(std::move(setup.model));
    return std::make_unique<Trainer>(options, std::move(setup), data, log);
  }
};

inline std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// After each step from 0 on.
inline std::vector<std::vector<std::byte>> states_of_calm_run(const RunOptions& options, uint64_t steps) {
  TrainerRun run(options);
  std::vector<std::vector<std::byte>> states = {run.state()};
  for (uint64_t step = 1; step <= steps; ++step) {
    run.train(1);
    states.push_back(run.state());
  }
  return states;
}

// The least host memory that does: nothing is cached.
inline std::string least_host_memory(RunOptions run) {
  run.host_memory = "64MiB";
  const TrainingSetup setup = plan_training(options_of(run));
  return std::to_string(setup.plan.memory.host_minimum_bytes);
}

}  // namespace terrace::trainer_tests
