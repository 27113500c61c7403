// GradientsOnDevice: gradients in device memory, for optimizer states there. Where a step has one
// micro-batch, a gradient stays in the device slot in which it was made until the update has used it. Else
// each chunk has an accumulator of the own tiles, to which landings are added as they lie on the device; with
// other ranks from work memory, where they exchange on devices, or from host memory. Where the device cannot
// reach that memory, each part is copied to the device first.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <terrace/memory/device/device.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/gradients/gradient_place.h>
#include <terrace/offload/landing/gradient_arithmetic.h>
#include <terrace/offload/plan/run_context.h>

namespace terrace {

class GradientsOnDevice final : public GradientPlace {
 public:
  // Takes the plan's accumulators from the device. All references outlive this.
  GradientsOnDevice(const RunContext& run, DeviceCache& cache, GradientArithmetic& arithmetic,
                    const AccumulationRules& rules);

  bool has(ChunkId) const override { return true; }
  void make_room(const GradientLanding&, Finish) override {}
  std::byte* place_of_whole(ChunkId chunk) override { return rules_.accumulates ? nullptr : gradient(chunk); }
  void add(const GradientLanding& own, const std::byte* gradient, bool is_last) override;
  void add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish finish) override;
  bool take(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now,
            Finish finish) override;
  void finish(bool ends_step) override;
  bool is_complete(ChunkId chunk) const override { return arithmetic_.sums().is_complete(chunk); }
  uint64_t h2d_bytes() const override { return h2d_bytes_; }

  DataType type(ChunkId chunk) const override { return rules_.type_in(space_.section_of(chunk)); }
  std::byte* gradient(ChunkId chunk) override;
  // In strict mode a gradient is at its address only while it is open.
  void open(ChunkId chunk) override;
  void close(ChunkId chunk) override;
  bool start_open(ChunkId chunk, io::Engine&) override { return is_complete(chunk); }
  bool is_open(ChunkId chunk) const override { return is_complete(chunk); }
  void release(ChunkId chunk) override;

 private:
  struct Accumulator {
    DeviceSlot slot{};
    std::byte* address = nullptr;  // null: the chunk is frozen
  };
  // Copies the runs to incoming_, after what was added from there. Returns the address there of the chunk's
  // first own element.
  const std::byte* bring(const GradientLanding& own, const std::byte* gradient);

  const FlatSpace& space_;
  Device& device_;
  DeviceCache& cache_;
  GradientArithmetic& arithmetic_;
  const AccumulationRules rules_;
  // Work memory for a part that is in host memory; empty where the device reaches all of them.
  const std::span<std::byte> incoming_;
  // A strict device has accumulators attached while they are in use; not where ranks pull, since another
  // thread than that of the steps adds then, and one at a time may attach.
  const bool opens_and_closes_;
  std::vector<Accumulator> accumulators_;  // by chunk
  uint64_t h2d_bytes_ = 0;
};

}  // namespace terrace
