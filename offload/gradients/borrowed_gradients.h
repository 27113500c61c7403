// BorrowedGradients: gradients that stay in memory of the program until the step's update is over
// (GradientOrigin::borrowed). Nothing is copied but the tiles that lie in more than one tensor. All sums are
// taken together when the micro-batch ends.
#pragma once

#include <cstddef>
#include <vector>

#include <terrace/offload/gradients/gradient_place.h>
#include <terrace/offload/landing/gradient_arithmetic.h>
#include <terrace/offload/transfer/tensor_memory.h>

namespace terrace {

class BorrowedGradients final : public GradientPlace {
 public:
  // All references outlive this.
  BorrowedGradients(const FlatSpace& space, GradientArithmetic& arithmetic);

  bool has(ChunkId) const override { return true; }
  void make_room(const GradientLanding&, Finish) override {}
  std::byte* place_of_whole(ChunkId) override { return nullptr; }
  // No lease writes gradients that are borrowed.
  void add(const GradientLanding& own, const std::byte* gradient, bool is_last) override;
  void add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish finish) override;
  bool take(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now,
            Finish finish) override;
  void finish(bool ends_step) override;
  void give_up(bool ends_step) override;
  bool is_complete(ChunkId chunk) const override { return arithmetic_.sums().is_complete(chunk); }

  DataType type(ChunkId chunk) const override { return space_.section_of(chunk).type; }
  // There is no such address: tile() gives the gradient.
  std::byte* gradient(ChunkId chunk) override;
  const std::byte* tile(ChunkId chunk, uint64_t tile, std::byte* scratch) override;
  bool start_open(ChunkId chunk, io::Engine&) override { return is_complete(chunk); }
  bool is_open(ChunkId chunk) const override { return is_complete(chunk); }
  void release(ChunkId chunk) override { arithmetic_.sums().forget(chunk); }

 private:
  // Forgets what the chunk's tensors had in an earlier step.
  void begin(const GradientLanding& landing);
  void end(const GradientLanding& landing);

  const FlatSpace& space_;
  GradientArithmetic& arithmetic_;
  TensorMemory memory_;
  std::vector<ChunkId> landed_;  // whole, in this micro-batch
};

}  // namespace terrace
