// A Trainer of a tiny model on numbers, with what must outlive it, for the tests of the trainer.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/reference/trainer.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

#include "support/scratch_folder.h"

namespace terrace::trainer_tests {

namespace fs = std::filesystem;

inline constexpr uint32_t kContext = 8;

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
  Communicator* communicator = nullptr;    // of one of several ranks
  bool is_in_second_place = false;         // TierPlace
  bool reads_past_host = false;            // parameters on nvme, by the device itself
  std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> decorate = nullptr;
  // Takes the place of the model that the configuration makes.
  std::function<std::unique_ptr<Model>(std::unique_ptr<Model>)> model = nullptr;
};

ModelConfig tiny_model(const std::string& preset = "gpt2", uint32_t layers = 2);
TrainerOptions options_of(const RunOptions& run);

// A trainer with what must outlive it.
struct TrainerRun {
  explicit TrainerRun(const RunOptions& run);

  // Numbers from 0 to 12, as a text with this fingerprint.
  static OpenTokens tokens(uint64_t fingerprint);
  // Returns their losses.
  std::vector<double> train(uint64_t steps);
  // Open from the first time on that it is asked for.
  const CheckpointFolder& saves_in(const fs::path& folder);
  // As a checkpoint holds it.
  std::vector<std::byte> state();

  MemoryLog log;
  std::map<fs::path, std::unique_ptr<CheckpointFolder>> saves_;
  TrainerOptions options;
  TrainingData data;
  std::unique_ptr<Trainer> trainer;

 private:
  std::unique_ptr<Trainer> make(const RunOptions& run);
};

std::string bytes_of_file(const fs::path& path);
// After each step from 0 on.
std::vector<std::vector<std::byte>> states_of_calm_run(const RunOptions& options, uint64_t steps);
// The least host memory that does: nothing is cached.
std::string least_host_memory(RunOptions run);

}  // namespace terrace::trainer_tests
