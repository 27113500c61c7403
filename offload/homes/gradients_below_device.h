// GradientsBelowDevice: what is common to gradients that leave the device. A chunk's gradient is held in a
// host slot for life, or is spilled to nvme where the plan has no room for it on the host (SpilledGradients).
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
#include <terrace/offload/homes/gradient_store.h>
#include <terrace/offload/homes/spilled_gradients.h>

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
    SpilledGradients* spilled = nullptr;   // of trainable chunks without a slot
    std::vector<std::byte*> landing = {};  // for any gradient, on its way to its place
  };
  // All references outlive this.
  GradientsBelowDevice(const FlatSpace& space, Device& device, DeviceCache& cache,
                       std::unique_ptr<GradientArithmetic> arithmetic, Places places);

  // There is a place for what lands, whoever was in the way has left.
  void make_place(const GradientLanding& landing);
  // Of what is on its way to the chunk's place, whatever is needed for it to leave from there.
  virtual void finish_landing(ChunkId chunk) = 0;
  // Where the chunk's gradient is made complete, with what landed of it before.
  std::byte* place(ChunkId chunk);
  bool has_old(ChunkId chunk) const { return is_held(chunk) || spilled_->has_old(chunk); }
  // The place holds what is to be kept.
  void put_away(ChunkId chunk);
  // Nothing is on its way to a place any more.
  void put_all_away(bool ends_step);
  // Copies the runs from the chunk's device slot, which it gives up, to the same offsets of `to`. The slot
  // may be taken and left again before that is over: a wait for its last copy out is one for this copy too.
  CacheSlot& copy_out(ChunkId chunk, std::span<const GradientRun> runs, std::byte* to);
  std::byte* slot_below(ChunkId chunk) const override;

  const FlatSpace& space_;
  Device& device_;
  DeviceCache& cache_;
  const std::vector<std::byte*> slots_;  // by chunk
  SpilledGradients* const spilled_;      // null where nothing is

 private:
  uint64_t d2h_bytes_ = 0;
};

}  // namespace terrace
