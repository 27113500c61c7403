// Inference: a model with weights within budgets of device and host memory, for evaluation and for the next
// token. Nothing trains: there are only parameters, moved to the device as they are used.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/reference/model/transformer/model.h>
#include <terrace/reference/setup/run_plan.h>

namespace terrace {

struct InferenceOptions {
  // Only placement of parameters, budgets, chunks, policy, I/O, threads and strict count. Parameters have the
  // type of the model.
  TrainConfig config;
  uint32_t batch = 1;
  uint32_t sequence = 0;                   // the longest sequence
  bool evaluates = true;                   // false: only next tokens, which take less device memory
  const ComputeDevice* compute = nullptr;  // null: the simulated device; outlives the inference
  // Keep the keys and values of tokens between calls of next_token_logits(), if the device budget has room
  // for them beside the run. Only where nothing is evaluated.
  bool caches = false;
};

// CacheOutcome: what became of the cache of keys and values.
struct CacheOutcome {
  bool is_used = false;
  uint64_t bytes = 0;  // of the cache, used or not; 0: none was asked for
  // If the configured device budget did not hold it: the one that does beside what the device holds without
  // it. A smaller one may hold it in the place of parameters. Else 0.
  uint64_t device_needed_bytes = 0;
};

class Inference {
 public:
  // Plans and allocates. Throws Error: capacity for budgets that are too small, io for paths. `log` outlives
  // the inference.
  Inference(std::unique_ptr<Model> model, const InferenceOptions& options, Log& log);
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  const Model& model() const;
  const TrainerPlan& plan() const;
  const CacheOutcome& cache() const;

  // Call one of these first. Both throw Error for weights that are missing, damaged or of another model.
  void load_folder(const std::filesystem::path& folder);  // a Hugging Face folder
  void load_checkpoint(const std::filesystem::path& path);

  // Returns the mean loss over the tokens of at most `batch` sequences of at most `sequence` tokens.
  float evaluate(const MicroBatch& batch);
  // Writes the logits of the token after the last of each sequence, [batch, vocabulary]. With a cache, only
  // the tokens are computed that do not begin the sequences of the last call; the logits are the same.
  void next_token_logits(const MicroBatch& batch, std::span<float> logits);

 private:
  struct Session;
  std::unique_ptr<Session> session_;
};

}  // namespace terrace
