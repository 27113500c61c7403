// Decoder: the model of every supported family. All are pre-norm transformer decoders that differ in their
// tensors (decoder_tensors.h), the kind of norm, the positions and the feed-forward part.
#pragma once

#include <terrace/reference/model/transformer/internal/decoder_tensors.h>
#include <terrace/reference/model/transformer/model.h>

namespace terrace::decoder {

class Decoder final : public Model {
 public:
  // `config` is complete and checked.
  Decoder(const ModelConfig& config, const ModelOptions& options);

  const ModelConfig& config() const override { return config_; }
  const ModelOptions& options() const override { return options_; }
  std::vector<TensorSpec> tensors() const override { return tensors_.specs; }
  std::vector<WeightSpec> weights() const override { return tensors_.weights; }
  std::vector<AdapterSpec> adapters() const override { return tensors_.adapters; }
  void initial_values(TensorId tensor, uint64_t first_element, std::span<float> out) const override;

  float train_micro_batch(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                          float loss_scale, std::string_view operation_prefix,
                          ActivationStore* store) const override;
  void train_layer_major(const Ops& ops, ParameterAccess& access, StackArena& arena,
                         std::span<MicroBatchRun> runs, float loss_scale,
                         ActivationStore* store) const override;
  void train_stage(const Ops& ops, ParameterAccess& access, StackArena& arena,
                   std::span<const MicroBatchRun> runs,
                   FunctionRef<void(StageMoment moment, uint32_t micro_batch)> at,
                   ActivationStore* store) const override;
  float evaluate(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                 std::string_view operation_prefix) const override;
  void next_token_logits(const Ops& ops, ParameterAccess& access, StackArena& arena, const MicroBatch& batch,
                         std::span<float> logits, std::string_view operation_prefix,
                         KeyValueCache* cache) const override;

 private:
  // The values that `values` says, before any are coded.
  void fill_first(const FirstValues& values, uint64_t first_element, std::span<float> out) const;

  ModelConfig config_;
  ModelOptions options_;
  DecoderTensors tensors_;
};

}  // namespace terrace::decoder
