// The reference of law 1: training in plain vectors, the scalar kernel, one thread, and a norm written out
// here. What it shares with the product is the model's arithmetic and nothing of its memory management.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/offload/options/offload_options.h>
#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/reference/model/transformer/model.h>
#include <terrace/reference/setup/training_setup.h>

#include "laws/placement_law.h"
#include "support/lease_adapters.h"

namespace terrace::laws {

inline constexpr uint64_t kSteps = 3;

// "adamw", "adam", "adagrad", "lion", "sgd" or "plain sgd", which keeps no moments; "muon" trains matrices
// that are no embeddings, and AdamW the rest.
inline constexpr std::array<std::string_view, 7> kOptimizers = {"adamw", "adam",      "adagrad", "lion",
                                                                "sgd",   "plain sgd", "muon"};
OptimizerSettings law_optimizer(std::string_view name);

// What a training's numbers depend on.
struct Training {
  DataType type = DataType::bf16;  // of the parameters; the model has it too
  std::optional<DataType> norm_type =
      {};  // of the norms' parameters where it is another; the model has it too
  uint32_t accumulation = 1;
  uint32_t group = 1;  // micro-batches that are summed before they join the sum of the step
  DataType accumulation_type = DataType::fp32;
  double clip_norm = 0;
  OptimizerSettings optimizer = law_optimizer("adamw");
  MomentType moment_type = MomentType::fp32;
  ProductType products = ProductType::fp32;  // of matrices
  uint32_t gradient_bits = 0;                // above 0: of what joins the sum of the step
  uint32_t parameter_bits = 0;               // the same of trained parameters of 16 bits
  GradientOrigin gradients = GradientOrigin::leases;
  double squares_elsewhere = 0;  // of another part's gradients, which belong to the norm
  UnusedGradients unused = UnusedGradients::zero;
  testing::Callers callers = testing::Callers::none;  // the norm's sums are in the order of the flat space

  RecordLayout layout() const;  // with whole masters
  // Declares the matrices that Muon trains, where it does.
  void declare_matrices(std::vector<TensorSpec>& tensors) const;
  // Where gradients are handed over, some tensors get none in the first and the third step.
  bool has_gradient(uint64_t step, TensorId tensor) const;
};
// 1 but in fp16, where the second step overflows.
float loss_scale_of(DataType type, uint64_t step);

// One group with decay, one without, rates that change from step to step; with Muon these are of AdamW, and
// its own comes third.
std::vector<OptimizerSettings> settings(uint64_t step,
                                        const OptimizerSettings& optimizer = law_optimizer("adamw"));

// Tokens that depend on the seed alone.
class TokenBatch {
 public:
  TokenBatch(const ModelConfig& config, uint64_t seed);
  MicroBatch view() const;

 private:
  std::vector<int32_t> tokens_;
  std::vector<int32_t> targets_;
  uint32_t sequence_;
};

// The micro-batches of a rank in a step that go layer by layer: the same tokens as one after the other.
struct LayerMajorBatch {
  LayerMajorBatch(const ModelConfig& config, uint64_t step, const StepRounds& rounds, uint32_t rank = 0);
  std::vector<TokenBatch> tokens;
  std::vector<std::string> prefixes;
  std::vector<MicroBatchRun> runs;  // views of these
};

// A step of micro-batches of one sequence, as the trainer runs it dry. With `layer_major` the micro-batches
// go layer by layer.
DryRun run_dry(const Model& model, uint32_t accumulation, Workers& workers,
               ActivationOffload activations = ActivationOffload::none, bool layer_major = false);

Outcome train_plainly(const Model& model, const Training& training);

}  // namespace terrace::laws
