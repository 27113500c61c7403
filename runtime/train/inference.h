// Inference: a model with weights within budgets of device and host memory, to be evaluated and asked for the
// next token. Nothing trains: there are parameters alone, moved to the device as they are used.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/runtime/model/transformer/model.h>
#include <terrace/runtime/train/setup/run_plan.h>

namespace terrace {

struct InferenceOptions {
  // Counts: placement of parameters, budgets, chunks, policy, I/O, threads, strict. Parameters have the type
  // of the model.
  TrainConfig config;
  uint32_t batch = 1;
  uint32_t sequence = 0;  // the longest that will be asked for
  bool evaluates = true;  // otherwise only next tokens are asked for, which takes less device memory
  const ComputeDevice* compute = nullptr;  // null: the simulated device; outlives the inference
};

class Inference {
 public:
  // Plans and allocates. Throws Error: capacity for budgets that are too small, io for paths. `log` outlives
  // it.
  Inference(std::unique_ptr<Model> model, const InferenceOptions& options, Log& log);
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  const Model& model() const;
  const TrainerPlan& plan() const;

  // One of these comes first. Both throw Error for weights that are missing, damaged or of another model.
  void load_folder(const std::filesystem::path& folder);  // of Hugging Face
  void load_checkpoint(const std::filesystem::path& path);

  // The mean loss over the tokens of at most `batch` sequences of at most `sequence` tokens.
  float evaluate(const MicroBatch& batch);
  // The logits of the token after the last of each sequence, [batch, vocabulary].
  void next_token_logits(const MicroBatch& batch, std::span<float> logits);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace terrace
