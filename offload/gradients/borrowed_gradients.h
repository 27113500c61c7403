// BorrowedGradients: gradients that stay in memory of the program until the step's update is over
// (GradientOrigin::borrowed). Nothing is copied but the tiles that lie in more than one tensor. All sums are
// taken together when the micro-batch ends.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <terrace/offload/gradients/gradient_store.h>
#include <terrace/offload/transfer/tensor_memory.h>

namespace terrace {

class BorrowedGradients final : public GradientStore {
 public:
  // `space` outlives this.
  BorrowedGradients(const FlatSpace& space, std::unique_ptr<GradientArithmetic> arithmetic,
                    std::vector<std::byte*> landing_slots);

  void land(const GradientLanding& landing) override;
  void land_zero(const GradientLanding& landing) override;
  void land_from(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now) override;
  void finish_micro_batch(bool ends_step) override;
  void give_up(bool ends_step) override;
  DataType type(ChunkId chunk) const override { return space_.section_of(chunk).type; }
  // There is no such address: tile() gives the gradient.
  std::byte* gradient(ChunkId chunk) override;
  const std::byte* tile(ChunkId chunk, uint64_t tile, std::byte* scratch) override;

 private:
  // Forgets what the chunk's tensors had in an earlier step.
  void begin(const GradientLanding& landing);
  void end(const GradientLanding& landing);

  const FlatSpace& space_;
  TensorMemory memory_;
  std::vector<ChunkId> landed_;  // whole, in this micro-batch
};

}  // namespace terrace
