// A model of which one micro-batch goes wrong.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/reference/model/transformer/model.h>

#include "offload/toy_training.h"

namespace terrace::trainer_tests {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What is to go wrong in one micro-batch; counted from 1.
struct Poison {
  uint64_t micro_batch = 0;
  std::string tensor;                       // a part of the name of the one whose gradient becomes infinite
  bool loss = false;                        // instead: it is no number, and every gradient is
  std::function<void()> instead = nullptr;  // of the infinity: this happens then
  bool in_evaluation = false;               // `instead` happens in the forward pass of the first evaluation
};

// Puts an infinity into the gradient of one tensor, or lets something else happen.
class PoisonedAccess final : public ParameterAccess {
 public:
  PoisonedAccess(ParameterAccess& access, TensorId tensor, DataType type, const Poison& poison)
      : access_(access), tensor_(tensor), type_(type), poison_(poison) {}
  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    access_.begin_use(operation, tensors, kind);
    is_used_ = kind == (poison_.in_evaluation ? UseKind::inference : UseKind::backward) &&
               std::ranges::find(tensors, tensor_) != tensors.end();
  }
  void end_use() override {
    if (is_used_ && poison_.instead) {
      poison_.instead();
    } else if (is_used_) {
      toy::store(access_.gradient(tensor_).data, 0, type_, kInfinity);
    }
    access_.end_use();
  }
  const std::byte* parameter(TensorId tensor) const override { return access_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return access_.gradient(tensor); }

 private:
  ParameterAccess& access_;
  const TensorId tensor_;
  const DataType type_;
  const Poison& poison_;
  bool is_used_ = false;
};

class PoisonedModel final : public Model {
 public:
  PoisonedModel(std::unique_ptr<Model> model, Poison poison)
      : model_(std::move(model)), poison_(std::move(poison)) {}

  const ModelConfig& config() const override { return model_->config(); }
  const ModelOptions& options() const override { return model_->options(); }
  std::vector<TensorSpec> tensors() const override { return model_->tensors(); }
  std::vector<WeightSpec> weights() const override { return model_->weights(); }
  std::vector<AdapterSpec> adapters() const override { return model_->adapters(); }
  void initial_values(TensorId tensor, uint64_t first, std::span<float> out) const override {
    model_->initial_values(tensor, first, out);
  }
  float train_micro_batch(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                          float loss_scale, std::string_view prefix, ActivationStore* store) const override {
    if (++micro_batches_ != poison_.micro_batch)
      return model_->train_micro_batch(ops, access, arena, batch, loss_scale, prefix, store);
    if (poison_.loss) {
      model_->train_micro_batch(ops, access, arena, batch, loss_scale, prefix, store);
      return std::numeric_limits<float>::quiet_NaN();
    }
    PoisonedAccess poisoned = poison(access);
    return model_->train_micro_batch(ops, poisoned, arena, batch, loss_scale, prefix, store);
  }
  void train_layer_major(const Ops& ops, ParameterAccess& access, StackArena& arena,
                         std::span<MicroBatchRun> runs, float loss_scale,
                         ActivationStore* store) const override {
    model_->train_layer_major(ops, access, arena, runs, loss_scale, store);
  }
  void train_stage(const Ops& ops, ParameterAccess& access, StackArena& arena,
                   std::span<const MicroBatchRun> runs,
                   FunctionRef<void(StageMoment moment, uint32_t micro_batch)> at,
                   ActivationStore* store) const override {
    model_->train_stage(ops, access, arena, runs, at, store);
  }
  float evaluate(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                 std::string_view prefix) const override {
    if (!poison_.in_evaluation) return model_->evaluate(ops, access, arena, batch, prefix);
    PoisonedAccess poisoned = poison(access);
    return model_->evaluate(ops, poisoned, arena, batch, prefix);
  }
  void next_token_logits(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                         std::span<float> logits, std::string_view prefix,
                         KeyValueCache* cache) const override {
    model_->next_token_logits(ops, access, arena, batch, logits, prefix, cache);
  }

 private:
  PoisonedAccess poison(ParameterAccess& access) const {
    const std::vector<TensorSpec> all = tensors();
    const auto found = std::ranges::find_if(
        all, [&](const TensorSpec& spec) { return spec.name.find(poison_.tensor) != std::string::npos; });
    return {access, TensorId{static_cast<uint32_t>(found - all.begin())}, found->type, poison_};
  }

  const std::unique_ptr<Model> model_;
  const Poison poison_;
  mutable uint64_t micro_batches_ = 0;
};

inline auto poisoned(const Poison& poison) {
  return [poison](std::unique_ptr<Model> model) {
    return std::make_unique<PoisonedModel>(std::move(model), poison);
  };
}

}  // namespace terrace::trainer_tests
