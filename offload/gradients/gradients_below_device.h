// GradientsBelowDevice: the common part of stores whose gradients leave the device. A chunk's gradient is
// always held in its host slot, or spilled to nvme where the plan has no room for it on the host
// (SpilledGradients).
//
// Where all micro-batches of a step are open together (OffloadOptions::layer_major), a spilled gradient stays
// in its landing slot from one micro-batch to the next, until the slot is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <terrace/memory/device/device.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/gradients/gradient_store.h>
#include <terrace/offload/gradients/spilled_gradients.h>

namespace terrace {

class GradientsBelowDevice : public GradientStore {
 public:
  std::byte* gradient(ChunkId chunk) override;
  bool is_held(ChunkId chunk) const override { return spilled_ == nullptr || !spilled_->is_spilled(chunk); }
  bool start_open(ChunkId chunk, io::Engine& engine) override;
  bool is_open(ChunkId chunk) const override;
  void release(ChunkId chunk) override;
  std::optional<WaitSubject> opening_subject() const override;
  bool is_complete(ChunkId chunk) const override;
  void land_from(const GradientLanding& landing, const HandedPart& part, const EvictionContext& now) override;

  uint64_t d2h_bytes() const override { return d2h_bytes_; }
  uint64_t landing_read_bytes() const override {
    return spilled_ != nullptr ? spilled_->landing_read_bytes() : 0;
  }
  uint64_t landing_write_bytes() const override {
    return spilled_ != nullptr ? spilled_->landing_write_bytes() : 0;
  }
  uint64_t opening_read_bytes() const override {
    return spilled_ != nullptr ? spilled_->opening_read_bytes() : 0;
  }

 protected:
  struct Places {
    std::vector<std::byte*> slots;         // by chunk: its host slot, or null
    SpilledGradients* spilled = nullptr;   // for trainable chunks without a slot; null where none is spilled
    std::vector<std::byte*> landing = {};  // slots for any gradient on its way to its place
  };
  // All references outlive this.
  GradientsBelowDevice(const FlatSpace& space, Device& device, DeviceCache& cache,
                       std::unique_ptr<GradientArithmetic> arithmetic, Places places);

  // Makes room at the landing's place; a gradient in the way leaves first.
  void make_place(const GradientLanding& landing);
  // True if the norm's sums are taken with this landing.
  virtual bool takes_sums(const GradientLanding& landing) const = 0;
  // True if the chunk's gradient leaves its place behind this landing.
  virtual bool leaves_after(const GradientLanding& landing) const = 0;
  // Finishes the landings on their way to the chunk's place, so that the gradient can leave from there.
  virtual void finish_landing(ChunkId chunk) = 0;
  // The place where the chunk's gradient is accumulated; it holds the earlier landings.
  std::byte* place(ChunkId chunk);
  bool has_old(ChunkId chunk) const { return is_held(chunk) || spilled_->has_old(chunk); }
  // Says that the place holds the bytes to keep: a spilled gradient starts leaving.
  void put_away(ChunkId chunk);
  // Puts all gradients away; no landing may be on its way.
  void put_all_away(bool ends_step);
  // Copies the runs from the chunk's device slot, which it gives up, to the same offsets of `to`. The slot
  // may be reused before the copy is over: a wait for its last copy out then covers this copy too.
  CacheSlot& copy_out(ChunkId chunk, std::span<const GradientRun> runs, std::byte* to);
  std::byte* slot_below(ChunkId chunk) const override;

  const FlatSpace& space_;
  Device& device_;
  DeviceCache& cache_;
  const std::vector<std::byte*> slots_;  // by chunk
  SpilledGradients* const spilled_;      // null where none is spilled

 private:
  uint64_t d2h_bytes_ = 0;
};

}  // namespace terrace
