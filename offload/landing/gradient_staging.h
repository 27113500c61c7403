// GradientStaging: the landings that are on their way to the place where gradients are added up. A landing is
// copied from its device slot to host memory, and handed on from there in the order of landings, when RankSum
// has all parts of it. Without slots a landing is handed on at once, as it lies on the device. Where RankSum
// takes landings from the device, what is handed over there is copied to a device slot first.
//
// The step thread uses it; it allocates in its constructor only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/landing/handed_part.h>
#include <terrace/offload/landing/rank_sum.h>

namespace terrace {

class GradientStaging {
 public:
  using Add = RankSum::Add;

  struct Slots {
    // Each has room for a chunk's gradient, or for what the sum takes from the device. They may be null where
    // land() is always given another place.
    std::span<std::byte* const> memory;
    std::span<const DeviceSlot> handed =
        {};                // for parts that are handed over on the device, as many; or none
    size_t most_runs = 1;  // the largest number of runs in a landing
    bool dry = false;      // no memory is touched
  };
  // All references outlive this.
  GradientStaging(const FlatSpace& space, Device& device, DeviceCache& cache, const Slots& slots,
                  std::unique_ptr<RankSum> sum);
  // Waits for what is under way.
  ~GradientStaging();
  GradientStaging(const GradientStaging&) = delete;
  GradientStaging& operator=(const GradientStaging&) = delete;

  // True if other ranks have a part in the sum.
  bool has_other_ranks() const { return sum_->has_others(); }

  // Hands the oldest landing on where all slots are taken.
  void make_room(Add add);
  // Takes a landing from the chunk's device slot, which it gives up; there is room. `place` is where the
  // whole gradient belongs, and is copied to; null: it is added there. A gradient that lies at its place on
  // the device stays in its slot.
  void land(const GradientLanding& landing, std::byte* place, Add add);
  // Takes a part that was handed over, for other ranks. The part's memory is not used after the call or, on
  // the device, by operations that are asked for later.
  void land_part(const GradientLanding& landing, const HandedPart& part);

  // Hand on the landings up to the chunk's last one, or all.
  void finish(ChunkId chunk, Add add);
  void finish_all(Add add);
  // Hands on those that have come, as long as `can_add` says so of their chunks; never waits.
  void poll(FunctionRef<bool(ChunkId)> can_add, Add add);

  // As RankSum.
  void ask() { sum_->ask(); }
  GradientLanding own_part(const GradientLanding& landing) { return sum_->own_part(landing); }
  RankBytes moved() const { return sum_->moved(); }
  uint64_t d2h_bytes() const { return d2h_bytes_ + sum_->d2h_bytes(); }

 private:
  struct Slot {
    StagedLanding staged;
    std::byte* memory = nullptr;
    CacheSlot handed;   // of the device, for what is handed over there
    DeviceCopy copied;  // out of the device, where other ranks have a part in the sum
  };
  Slot& take(const GradientLanding& landing, std::byte* memory);
  // The slot of a landing; the oldest one has the age 0.
  Slot& slot_of(size_t age) { return slots_[(oldest_ + age) % slots_.size()]; }
  void fill(Slot& slot, const HandedPart& part);
  void hand_on_oldest(Add add);
  void land_within_device(const GradientLanding& landing, const std::byte* place, Add add);

  const FlatSpace& space_;
  Device& device_;
  DeviceCache& cache_;
  const bool dry_;
  std::vector<Slot> slots_;
  size_t oldest_ = 0;  // the slot of the oldest landing, with `taken_` of them from there on
  size_t taken_ = 0;
  uint64_t d2h_bytes_ = 0;
  const std::unique_ptr<RankSum> sum_;  // goes first, since it reads and writes the slots
};

}  // namespace terrace
