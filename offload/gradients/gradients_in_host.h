// GradientsInHost: gradients in host slots. Where a step has one micro-batch, each is copied to its slot from
// the device, and its sums are taken when it has arrived. Else the slot is an accumulator of the own tiles,
// in fp32 or the parameters' type (OffloadOptions::accumulation_type), to which landings are added.
//
// Taking over: a gradient that lands in the slot of its parameters displaces them. From then to the update
// the chunk has parameters on the device only, if at all. The update makes new parameters from the masters; a
// step without an update restores the old ones from the masters.
#pragma once

#include <cstddef>
#include <vector>

#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/gradients/gradient_place.h>
#include <terrace/offload/landing/gradient_arithmetic.h>

namespace terrace {

class GradientsInHost final : public GradientPlace {
 public:
  // `slots` by chunk: null where the gradient is somewhere else, or there is none. `take_over`: they are
  // those of the parameters. All references outlive this.
  GradientsInHost(const FlatSpace& space, DeviceCache& cache, GradientArithmetic& arithmetic,
                  const AccumulationRules& rules, std::vector<std::byte*> slots, bool take_over = false);

  bool has(ChunkId chunk) const override { return slots_[index_of(chunk)] != nullptr; }
  void make_room(const GradientLanding& landing, Finish finish) override;
  std::byte* place_of_whole(ChunkId chunk) override { return rules_.accumulates ? nullptr : gradient(chunk); }
  void add(const GradientLanding& own, const std::byte* gradient, bool is_last) override;
  void add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish finish) override;
  bool take(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now,
            Finish finish) override;
  void finish(bool) override {}
  bool is_complete(ChunkId chunk) const override { return arithmetic_.sums().is_complete(chunk); }
  bool is_displaced(ChunkId chunk) const override { return displaced_[index_of(chunk)]; }
  void end_displacement() override { displaced_.assign(displaced_.size(), false); }
  std::byte* spare_slot(ChunkId chunk) const override { return slots_[index_of(chunk)]; }

  DataType type(ChunkId chunk) const override { return rules_.type_in(space_.section_of(chunk)); }
  std::byte* gradient(ChunkId chunk) override;
  bool start_open(ChunkId chunk, io::Engine&) override { return is_complete(chunk); }
  bool is_open(ChunkId chunk) const override { return is_complete(chunk); }
  void release(ChunkId chunk) override { arithmetic_.sums().forget(chunk); }

 private:
  const FlatSpace& space_;
  DeviceCache& cache_;
  GradientArithmetic& arithmetic_;
  const AccumulationRules rules_;
  const std::vector<std::byte*> slots_;  // by chunk
  const bool take_over_;
  std::vector<bool> displaced_;  // by chunk
};

}  // namespace terrace
