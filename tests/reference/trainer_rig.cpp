#include "reference/trainer_rig.h"

#include <fstream>
#include <utility>

#include <terrace/runtime/checkpoint/found_commit.h>
#include <terrace/runtime/config/tier_paths.h>

#include "support/offloaders.h"

namespace terrace::trainer_tests {
namespace {

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

}  // namespace

ModelConfig tiny_model(const std::string& preset, uint32_t layers) {
  ModelConfig model = model_preset(preset);
  model.layers = layers;
  model.heads = 2;
  model.width = 32;
  model.context = kContext;
  model.vocabulary = 13;
  if (preset == "gpt2") return model;
  model.key_value_heads = 1, model.head_size = 16;
  model.hidden = 48, model.positions = kContext;
  return model;
}

TrainerOptions options_of(const RunOptions& run) {
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
  options.model = tiny_model(run.preset, run.layers);
  options.tier_start = run.start;
  options.discard_commits = run.discard;
  options.clock = run.clock;
  options.system_root = run.system_root;
  options.compute = run.compute;
  options.communicator = run.communicator;
  options.config.placement.update_rates = run.update_rates;
  TierOfRank seat{.is_second = run.is_in_second_place};
  if (run.communicator != nullptr) {
    seat.rank = run.communicator->rank();
    seat.ranks = run.communicator->size();
  }
  options.config.placement.tier_name = tier_name_of(seat);
  if (run.communicator != nullptr && run.start == TierStart::resume)
    options.commit =
        require_commit(options.config, look_for_commit(options.config.placement, run.communicator)).commit;
  if (run.reads_past_host) {
    options.config.aio.file_reads = FileReads::on;
    options.config.terrace.verify_checksums = false;
  }
  return options;
}

TrainerRun::TrainerRun(const RunOptions& run)
    : options(options_of(run)),
      data(tokens(run.data), {kContext, options.config.terrace.seed, run.validation_fraction}),
      trainer(make(run)) {}

OpenTokens TrainerRun::tokens(uint64_t fingerprint) {
  OpenTokens open;
  open.train = std::make_unique<Numbers>(fingerprint);
  return open;
}

std::vector<double> TrainerRun::train(uint64_t steps) {
  std::vector<double> losses;
  for (uint64_t s = 0; s < steps; ++s) losses.push_back(trainer->step().loss);
  return losses;
}

const CheckpointFolder& TrainerRun::saves_in(const fs::path& folder) {
  std::unique_ptr<CheckpointFolder>& saves = saves_[folder];
  if (saves == nullptr) saves = std::make_unique<CheckpointFolder>(folder, log);
  return *saves;
}

std::vector<std::byte> TrainerRun::state() {
  return testing::records_of(trainer->offloader());
}

std::unique_ptr<Trainer> TrainerRun::make(const RunOptions& run) {
  if (!run.model && !run.decorate) return std::make_unique<Trainer>(options, data, log);
  TrainingSetup setup = plan_training(options);
  setup.offload.hooks.decorate_engine = run.decorate;
  if (run.model) setup.model = run.model(std::move(setup.model));
  return std::make_unique<Trainer>(options, std::move(setup), data, log);
}

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::vector<std::byte>> states_of_calm_run(const RunOptions& options, uint64_t steps) {
  TrainerRun run(options);
  std::vector<std::vector<std::byte>> states = {run.state()};
  for (uint64_t step = 1; step <= steps; ++step) {
    run.train(1);
    states.push_back(run.state());
  }
  return states;
}

std::string least_host_memory(RunOptions run) {
  run.host_memory = "64MiB";
  const TrainingSetup setup = plan_training(options_of(run));
  return std::to_string(setup.plan.memory.host_minimum_bytes);
}

}  // namespace terrace::trainer_tests
