// GradientStaging: gradients on their way from the device to what they are added to. A landing is copied to a
// slot of host memory and handed on from there, in the order of landings: at once where there is one rank
// (StagedGradients), or with those of the other ranks (GradientExchange).
//
// The step thread uses it; it allocates in its constructor only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/landing/handed_part.h>
#include <terrace/offload/plan/rank_bytes.h>
#include <terrace/offload/transfer/device_copy.h>

namespace terrace {

class GradientStaging {
 public:
  virtual ~GradientStaging() = default;
  GradientStaging(const GradientStaging&) = delete;
  GradientStaging& operator=(const GradientStaging&) = delete;

  // Takes one addition of a landing: `own` is its part in the own tiles, with runs counted from the first of
  // them, whose address is `gradient`. There are no runs where nothing of the landing is in the own tiles.
  // `is_last`: it is the landing's last addition.
  using Add = FunctionRef<void(const GradientLanding& own, const std::byte* gradient, bool is_last)>;

  // Hands the oldest landing on where all slots are taken.
  void make_room(Add add) { hand_on(next_, add); }
  // Copies the landing's runs from the chunk's device slot, which it gives up. There is room.
  void land(const GradientLanding& landing);
  // Lands a part that was handed over. Returns false where it can be added where it is.
  virtual bool land_from(const GradientLanding& landing, const HandedPart& part) = 0;

  // Hand on the landings up to the chunk's last one, or all.
  void finish(ChunkId chunk, Add add);
  void finish_all(Add add);
  // Hands on those that have come, as long as `can_add` says so of their chunks; never waits.
  void poll(FunctionRef<bool(ChunkId)> can_add, Add add);

  // The part of a landing of zeros that lies in the own tiles, as that of the last micro-batch of its round;
  // valid until the next call.
  virtual GradientLanding own_part(const GradientLanding& landing) = 0;

  uint64_t d2h_bytes() const { return d2h_bytes_; }
  // Of other ranks and to them.
  const RankBytes& moved() const { return moved_; }

 protected:
  struct Slot {
    std::byte* memory = nullptr;  // room for a chunk's gradient
    bool is_taken = false;
    GradientLanding landing;  // with `runs`
    std::vector<GradientRun> runs;
  };
  // All references outlive this. `most_runs` is the largest number of runs in a landing.
  GradientStaging(const FlatSpace& space, Device& device, DeviceCache& cache,
                  std::span<std::byte* const> memory, size_t most_runs);

  // Notes the landing in the next slot.
  size_t take(const GradientLanding& landing);
  // The event of the copies into the slot, one for each run; begun.
  virtual DeviceCopy& begin_leaving(size_t slot, CacheSlot& source) = 0;
  // Is called when the landing of a slot is on its way from the device.
  virtual void left_device(size_t slot) = 0;
  virtual bool has_arrived(size_t slot) = 0;
  // Waits until the landing is there, and adds it.
  virtual void add_landing(size_t slot, Add add) = 0;

  const FlatSpace& space_;
  Device& device_;
  DeviceCache& cache_;
  std::vector<Slot> slots_;
  RankBytes moved_;

 private:
  size_t slot_of(size_t age) const { return (next_ + age) % slots_.size(); }
  void hand_on(size_t slot, Add add);

  size_t next_ = 0;  // the slot of the oldest landing
  uint64_t d2h_bytes_ = 0;
};

// StagedGradients: there is one rank.
class StagedGradients final : public GradientStaging {
 public:
  StagedGradients(const FlatSpace& space, Device& device, DeviceCache& cache,
                  std::span<std::byte* const> memory, size_t most_runs)
      : GradientStaging(space, device, cache, memory, most_runs), sources_(memory.size()) {}

  bool land_from(const GradientLanding&, const HandedPart&) override { return false; }
  GradientLanding own_part(const GradientLanding& landing) override { return landing; }

 private:
  DeviceCopy& begin_leaving(size_t slot, CacheSlot& source) override;
  void left_device(size_t) override {}
  bool has_arrived(size_t slot) override { return sources_[slot]->out.done(); }
  void add_landing(size_t slot, Add add) override;

  std::vector<CacheSlot*> sources_;  // by slot
};

}  // namespace terrace
