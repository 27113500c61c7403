// A model, tokens for it and one micro-batch in plain vectors: what tests of models start from.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/reference/model/compute/counter_random.h>
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/transformer/model.h>

#include "../compute/compute_test_support.h"
#include "support/in_memory_parameters.h"
#include "support/work_memory.h"

namespace terrace::testing {

inline constexpr uint64_t kWorkBytes = 64 * kMiB;

// A configuration and how it is trained.
struct TestModel : ModelConfig, ModelOptions {
  std::unique_ptr<Model> make() const { return make_model(*this, *this); }
};

struct Tokens {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
  uint32_t batch;
  uint32_t sequence;

  Tokens(const ModelConfig& config, uint32_t samples, uint32_t length, uint64_t seed = 3)
      : batch(samples), sequence(length) {
    for (uint32_t i = 0; i < samples * length; ++i) {
      inputs.push_back(static_cast<int32_t>(random_bits({.seed = seed, .stream = 0}, i) % config.vocabulary));
      targets.push_back(
          static_cast<int32_t>(random_bits({.seed = seed, .stream = 1}, i) % config.vocabulary));
    }
  }
  MicroBatch view() const { return {inputs, targets, batch, sequence}; }
};

inline InMemoryParameters parameters_of(const Model& model) {
  return InMemoryParameters(model.tensors(), [&](TensorId tensor, uint64_t first, std::span<float> out) {
    model.initial_values(tensor, first, out);
  });
}

struct Result {
  float loss = 0;
  uint64_t peak_bytes = 0;
  std::vector<RecordedUse> uses;
  std::map<std::string, std::vector<std::byte>> gradients;  // of whole weights
};

inline std::vector<std::byte> gradient_of(const InMemoryParameters& parameters, const WeightSpec& weight) {
  std::vector<std::byte> bytes;
  for (const TensorId part : weight.parts) {
    const std::span<const std::byte> gradient = parameters.gradient_bytes(part);
    bytes.insert(bytes.end(), gradient.begin(), gradient.end());
  }
  return bytes;
}

inline Result train(const TestModel& config, const Tokens& tokens, size_t threads = 2,
                    float loss_scale = 1.0f, ActivationStore* store = nullptr) {
  const auto owner = config.make();
  const Model& model = *owner;
  InMemoryParameters parameters = parameters_of(model);
  Workers workers(threads);
  WorkMemory work(kWorkBytes);
  Result result;
  result.loss = model.train_micro_batch(HostOps(workers, best_instruction_set()), parameters, work.arena(),
                                        tokens.view(), loss_scale, "mb0/", store);
  EXPECT_EQ(work.arena().used_bytes(), 0u);
  result.peak_bytes = work.arena().peak_bytes();
  result.uses = parameters.uses();
  for (uint32_t i = 0; i < parameters.tensors().size(); ++i) {
    const TensorSpec& spec = parameters.tensors()[i];
    if (!spec.trainable) continue;
    EXPECT_EQ(parameters.backward_uses(TensorId{i}), spec.backward_uses) << spec.name;
  }
  for (const WeightSpec& weight : model.weights()) {
    result.gradients[weight.name] = gradient_of(parameters, weight);
  }
  return result;
}

// The same memory for every tensor: nothing to keep track of, so nothing to allocate.
class SilentAccess final : public ParameterAccess {
 public:
  explicit SilentAccess(uint64_t largest_tensor_bytes)
      : largest_bytes_(largest_tensor_bytes), memory_(2 * largest_tensor_bytes) {}
  void begin_use(std::string_view, std::span<const TensorId>, UseKind) override {}
  void end_use() override {}
  const std::byte* parameter(TensorId) const override { return memory_.data(); }
  GradientView gradient(TensorId) override { return {memory_.data() + largest_bytes_, false}; }

 private:
  uint64_t largest_bytes_;
  std::vector<std::byte> memory_;
};

}  // namespace terrace::testing
