// A toy model whose gradients are exact functions of its parameters, trained through an Offloader and,
// independently, in plain vectors with the scalar kernel. Placement must not show in a single bit.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/offload/offloader.h>
#include <terrace/optimizer_cpu/optimizer.h>

#include "support/scratch_folder.h"

namespace terrace::toy {

struct Use {
  std::string name;
  std::vector<uint32_t> tensors;
};

// A micro-batch of a step: names of uses have its round, and gradients follow from its number. A rank that
// has none in a round goes through the leases of one.
struct MicroBatch {
  uint32_t round = 0;
  uint32_t number = 0;
  bool has_data = true;
  MicroBatch(uint32_t m) : round(m), number(m) {}  // NOLINT: with one rank they are the same
  MicroBatch(const StepRounds& rounds, uint32_t in_round, uint32_t rank)
      : round(in_round), number(rounds.number(in_round, rank)), has_data(rounds.has(in_round, rank)) {}
};

// Tensors of awkward sizes: several in one chunk, one across many chunks, one used twice in backward.
std::vector<TensorSpec> tensors(DataType type, bool with_frozen, uint32_t shared_uses = 2);
std::vector<Use> forward_uses(bool with_frozen);
// The forward uses of a model of these tensors; where "shared" is used once in backward there is no head.
std::vector<Use> uses_of(const std::vector<TensorSpec>& specs);
// All uses of a step.
std::vector<TensorUse> trace(const std::vector<TensorSpec>& specs, uint32_t accumulation,
                             bool layer_major = false);

float initial_value(uint32_t tensor, uint64_t element);
void initialise(Offloader& offloader);

float load(const std::byte* data, uint64_t element, DataType type);
void store(std::byte* data, uint64_t element, DataType type, float value);

// One group with decay, one without.
std::vector<OptimizerSettings> groups(OptimizerKind kind = OptimizerKind::adam);

void use_forward(ParameterAccess& access, const Use& use, MicroBatch micro_batch);
// `number` is that of the use in the forward pass.
void use_backward(ParameterAccess& access, const std::vector<TensorSpec>& specs, const Use& use,
                  uint32_t number, MicroBatch micro_batch, float loss_scale = 1);
// One micro-batch through any ParameterAccess. `skip` names a forward use that is left out.
// Gradients are those of the loss times `loss_scale`.
void run_micro_batch(ParameterAccess& access, const std::vector<TensorSpec>& specs, MicroBatch micro_batch,
                     const std::string& skip = "", float loss_scale = 1);
// The leases of a micro-batch, and nothing computed in them.
void lease_micro_batch(ParameterAccess& access, const std::vector<TensorSpec>& specs, uint32_t micro_batch);
// All micro-batches of a step together, in three layers: {embed}, {block0, block1}, {block2}. skips[m] is
// left out of micro-batch m. With `rounds` these are those of `rank`.
void run_layer_major(ParameterAccess& access, const std::vector<TensorSpec>& specs,
                     const std::vector<std::string>& skips, float loss_scale = 1, StepRounds rounds = {},
                     uint32_t rank = 0);
// A step of micro-batches one after the other.
UpdateResult train_step(Offloader& offloader, const std::vector<TensorSpec>& specs, uint32_t accumulation,
                        const UpdateSettings& settings);

// The same training in plain vectors.
class Reference final : public ParameterAccess {
 public:
  Reference(std::vector<TensorSpec> specs, uint32_t accumulation,
            DataType accumulation_type = DataType::fp32);
  void begin_use(std::string_view, std::span<const TensorId> ids, UseKind kind) override;
  void end_use() override;
  const std::byte* parameter(TensorId id) const override { return tensors_[index_of(id)].parameter.data(); }
  GradientView gradient(TensorId id) override;

  void step(uint64_t step, const std::string& skip = "", float loss_scale = 1);
  // skips[m] is left out of micro-batch m.
  void step_skipping(uint64_t step, const std::vector<std::string>& skips, float loss_scale = 1);
  const std::vector<std::byte>& parameters(uint32_t tensor) const { return tensors_[tensor].parameter; }
  // Leaves out tensors without a gradient in a step, which count their own steps then.
  void skip_unused() { skips_unused_ = true; }
  // Moments are kept as in records of this layout: in fp32, or as codes.
  void keep_moments_as(const RecordLayout& layout) { has_codes_ = layout.has_codes(); }
  // The gradient of the last step.
  const std::vector<float>& sum(uint32_t tensor) const { return tensors_[tensor].sum; }
  const std::vector<float>& master(uint32_t tensor) const { return tensors_[tensor].master; }

 private:
  struct Tensor {
    std::vector<float> master, exp_avg, exp_avg_sq, sum;
    std::vector<std::byte> parameter, gradient;
    uint32_t uses;
    bool has_gradient = false;  // in the step
    uint64_t steps = 0;
  };
  std::vector<TensorSpec> specs_;
  uint32_t accumulation_;
  DataType accumulation_type_;
  std::vector<Tensor> tensors_;
  std::vector<TensorId> leased_;
  UseKind kind_ = UseKind::forward;
  bool skips_unused_ = false, has_codes_ = false;
};

// Everything on nvme below `folder`, through the engine `threads`, with the least budgets that do.
OffloadOptions least_nvme_options(const FlatSpace& space, const std::vector<TensorUse>& uses,
                                  const std::filesystem::path& folder);

}  // namespace terrace::toy
