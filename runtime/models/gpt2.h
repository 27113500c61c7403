// Gpt2: the GPT-2 family (Radford et al., 2019) as a straight line of operations, forward and backward.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include <terrace/runtime/models/model.h>

namespace terrace {

class Gpt2 final : public Model {
 public:
  // Throws Error(config) when the sizes do not fit together.
  Gpt2(const ModelConfig& config, const ModelOptions& options);

  const ModelConfig& config() const override { return config_; }
  const ModelOptions& options() const override { return options_; }

  // The head shares wte.weight. Residual projections start with init_std / sqrt(2 * layers).
  std::vector<TensorSpec> tensors() const override;
  std::vector<WeightSpec> weights() const override;
  void initial_values(TensorId tensor, uint64_t first_element, std::span<float> out) const override;

  float train_micro_batch(const HostOps& ops, ParameterAccess& access, StackArena& arena,
                          const MicroBatch& batch, float loss_scale,
                          std::string_view operation_prefix) const override;
  float evaluate(const HostOps& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                 std::string_view operation_prefix) const override;

 private:
  ModelConfig config_;
  ModelOptions options_;
};

}  // namespace terrace
