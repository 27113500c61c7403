// LayerMajorPass: one run of a decoder over several micro-batches, layer by layer. DecoderPass computes; this
// class holds the order and the values that are kept of every micro-batch.
//
// It keeps the inputs of all segments of layers (in the arena or in the ActivationStore), the activation and
// the gradient that go from layer to layer, and the head's activations. Forward goes layer by layer, backward
// segment by segment: a segment of several layers is computed again for one micro-batch after the other.
#pragma once

#include <span>

#include <terrace/base/function_ref.h>
#include <terrace/reference/model/transformer/internal/decoder_pass.h>

namespace terrace::decoder {

class LayerMajorPass : private DecoderPass {
 public:
  // `runs` have one shape, that of context.batch.
  LayerMajorPass(const PassContext& context, std::span<MicroBatchRun> runs)
      : DecoderPass(context), runs_(runs) {}

  void train(float loss_scale);

 private:
  // Returns the array of rows of one micro-batch.
  using RowsOf = FunctionRef<std::span<float>(uint32_t run)>;

  uint32_t count() const { return static_cast<uint32_t>(runs_.size()); }
  // The operations that follow belong to this micro-batch.
  void select(uint32_t run);
  // Calls body(run) for each micro-batch, with it selected.
  template <typename Body>
  void for_each_run(Body body) {
    for (uint32_t run = 0; run < count(); ++run) {
      select(run);
      body(run);
    }
  }
  // Returns one micro-batch's part of an array for all. A dry run's null address stays null.
  template <typename T>
  std::span<T> of(std::span<T> all, uint32_t run) const {
    const uint64_t size = all.size() / count();
    return {all.data() == nullptr ? nullptr : all.data() + run * size, size};
  }
  HeadActivations of(const HeadActivations& all, uint32_t run) const;
  std::span<float> allocate_all(uint64_t width) { return allocate(width * count()); }
  HeadActivations allocate_heads();

  void send_tokens();
  void embed_all(std::span<float> x);
  void forward_layers(uint32_t layer, uint32_t end, RowsOf x);
  void forward_segment(const Segments& segments, uint32_t segment, RowsOf x, RowsOf y);
  void run_segments(const Segments& segments, std::span<float> x, std::span<float> dx,
                    FunctionRef<void(RowsOf)> above);
  void run_segments_stored(const Segments& segments, std::span<float> x, std::span<float> dx,
                           FunctionRef<void(RowsOf)> above);
  void run_head(RowsOf x, const HeadActivations& kept, std::span<float> dx, float loss_scale);
  void embed_all_backward(std::span<const float> dx, const HeadActivations& heads, float loss_scale);

  const std::span<MicroBatchRun> runs_;
  std::span<const int32_t> tokens_;
  std::span<const int32_t> targets_;
};

}  // namespace terrace::decoder
