// StagePass: a step of one stage of a pipeline, run dry. DecoderPass has the operations; this class holds the
// order (1F1B) and what is kept of every micro-batch that has gone forward and not yet backward.
//
// Activations and gradients of other stages have no values here: only their memory counts.
#pragma once

#include <array>
#include <span>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/reference/model/transformer/internal/decoder_pass.h>

namespace terrace::decoder {

class StagePass : private DecoderPass {
 public:
  // `runs` have one shape, that of context.batch.
  StagePass(const PassContext& context, std::span<const MicroBatchRun> runs,
            FunctionRef<void(StageMoment moment, uint32_t micro_batch)> at)
      : DecoderPass(context), part_(*context.config.part), runs_(runs), at_(at) {}

  void train();

 private:
  // What is kept of one micro-batch.
  struct Kept {
    std::span<float> input;
    std::vector<std::span<float>> outputs;  // of segments; with a store the last one alone is kept here
    std::vector<LayerActivations> layers;   // if nothing is computed again
    HeadActivations head;
  };

  uint32_t count() const { return static_cast<uint32_t>(runs_.size()); }
  Kept allocate_kept();
  // `ended`: micro-batches that have gone backward. Gradients that land are those of the next one.
  void select(uint32_t run, uint32_t ended);
  void forward(uint32_t run);
  void backward(uint32_t run);
  void layers_forward(uint32_t slot, Kept& kept);
  void layers_backward(uint32_t slot, Kept& kept);
  void head_forward_here(Kept& kept);
  void head_backward_here(Kept& kept);
  std::span<float> input_of(const Kept& kept, uint32_t segment) const;
  Segments segments() const;
  // Memory for a gradient of the token table, which goes from the stage with the head to the first one.
  void allocate_tied_gradient(const TableTensors& table);

  const ModelPart part_;
  const std::span<const MicroBatchRun> runs_;
  const FunctionRef<void(StageMoment moment, uint32_t micro_batch)> at_;
  std::vector<Kept> kept_;                     // by the micro-batch's number modulo their count
  std::array<std::span<float>, 2> buffers_{};  // inputs of segments that come and go, with a store
  std::span<float> dx_;
};

}  // namespace terrace::decoder
