// GradientStore: where gradients rest between backward and update.
//
//   states on the host, one micro-batch    the host slot of the chunk's parameters, or one of its own
//   states on the host, accumulation       a host accumulator per chunk; micro-batches land in staging first
//   states on the device, one micro-batch  the gradient stays in its device slot
//   states on the device, accumulation     an accumulator per chunk in device memory
//
// Where the plan has no room on the host they are spilled (SpilledGradients). Accumulators are fp32, or of
// the parameters' type (OffloadOptions::accumulation_type).
//
// Taking over: a gradient that lands in the slot of its parameters displaces them. From then to the update
// the chunk has parameters on the device only, if there; the update makes new ones of the masters, and a step
// without one has them restored from there.
//
// The sums of squares behind the norm are taken while a gradient lands, block by block, and fused with the
// last accumulation: no pass over all gradients remains for the update. When that happens depends on when
// copies end; what the sums are does not. On a device that the host cannot reach they are taken when the last
// micro-batch has ended, all together.
//
// Where all micro-batches of a step are open together (OffloadOptions::layer_major), chunks that hold tensors
// of several layers land in parts (GradientRuns), and a spilled gradient stays in its landing slot from one
// micro-batch to the next, until the slot is needed.
//
// Used by the step thread only, but for what says otherwise.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/homes/device_arithmetic.h>
#include <terrace/offload/homes/gradient_runs.h>
#include <terrace/offload/homes/param_home.h>
#include <terrace/offload/homes/spilled_gradients.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

class GradientStore {
 public:
  GradientStore(const FlatSpace& space, const OffloadOptions& options, const MemoryPlan& plan,
                HostArena& arena, Device& device, DeviceCache& cache, const ParamHome& home,
                const GradientRuns& runs, SpilledGradients* spilled, Workers& workers,
                InstructionSet instruction_set, std::span<std::byte> work_memory);

  // What lands is complete in the chunk's device slot, unpinned: it starts on its way, and the slot with it.
  void land(const GradientLanding& landing);
  // The same of a chunk without a slot, when its micro-batch has ended: zeros count.
  void land_zero(const GradientLanding& landing);
  // Finishes what has landed meanwhile, while its bytes are still in a cache; never waits.
  void poll();
  // Everything landed is where the update reads it, and its sums are known; the micro-batches that were open
  // are over. `ends_step`: the last of the step is one of them.
  void finish_micro_batch(bool ends_step);

  // The precision in which gradient() holds them.
  DataType type(ChunkId chunk) const;
  // The bytes of the chunk's gradient for the update, in place until release(); of a spilled one while it is
  // open. For states on the device these are device memory: only to be used inside a device operation,
  // between open() and close().
  std::byte* gradient(ChunkId chunk);
  void open(ChunkId chunk);
  void close(ChunkId chunk);

  // --- As the update finds it; on the thread of the update ---
  // Where the chunk's complete gradient lies: false when it is on nvme and passes through a staging slot.
  bool is_held(ChunkId chunk) const { return spilled_ == nullptr || !spilled_->is_spilled(chunk); }
  // Makes gradient() point to the complete gradient, which is read through `engine` where it is spilled:
  // false when it is not complete, or there is no room for it now. It is there when is_open() says so, which
  // throws what a read failed with.
  bool start_open(ChunkId chunk, io::Engine& engine);
  bool is_open(ChunkId chunk) const;
  // The update is done with the chunk's gradient, and whatever leaves from its memory has left.
  void release(ChunkId chunk);
  // What a wait for one that was asked for waits for; nothing where all are there.
  std::optional<WaitSubject> opening_subject() const {
    return spilled_ != nullptr ? spilled_->opening_subject() : std::nullopt;
  }
  // Whether it lies in its parameters' place below the device.
  bool takes_over(ChunkId chunk) const;
  // Read for updates so far; while none runs.
  uint64_t opening_read_bytes() const { return spilled_ != nullptr ? spilled_->opening_read_bytes() : 0; }

  // --- Of the step thread again ---
  // In the last micro-batch, of one that is on its way: it has landed, and its sums are known.
  bool is_complete(ChunkId chunk) const {
    return is_held(chunk) ? landed_[index_of(chunk)].load(std::memory_order_acquire)
                          : spilled_->is_written(chunk);
  }
  // Of one that is complete.
  bool is_finite(ChunkId chunk) const;
  // Whether the chunk's gradient of this step has displaced its parameters, which nothing has replaced yet.
  bool is_displaced(ChunkId chunk) const { return displaced_[index_of(chunk)]; }
  // New parameters are on their way to all, or the old ones are there again.
  void end_displacement() { displaced_.assign(displaced_.size(), false); }
  // Over the whole flat space, in an order that depends on the flat space alone. All micro-batches are over.
  GradientNorm norm() const;

  // Of copies asked for.
  uint64_t d2h_bytes() const { return d2h_bytes_; }
  // Between nvme and the landing slots of what is spilled.
  uint64_t landing_read_bytes() const { return spilled_ != nullptr ? spilled_->landing_read_bytes() : 0; }
  uint64_t landing_write_bytes() const { return spilled_ != nullptr ? spilled_->landing_write_bytes() : 0; }
  bool on_device() const { return on_device_; }
  bool accumulates() const { return accumulates_; }
  // A host slot that is free between finish_micro_batch() and the next step: for parameters on their way out
  // when gradients have another precision.
  std::byte* landing_slot(uint32_t index) { return staged_[index].memory; }
  // A slot for the chunk's parameters between steps, where they have none of their own.
  std::byte* spare_slot(ChunkId chunk) const;

 private:
  struct Staged {
    std::byte* memory = nullptr;
    CacheSlot* source = nullptr;  // null: nothing is landing here
    GradientLanding landing;      // whose runs are these
    std::vector<GradientRun> runs;
  };
  // A gradient whose copy to its host slot this micro-batch may not have finished.
  struct Leaving {
    CacheSlot* source;
    ChunkId chunk;
  };
  // The one that landed `age` landings after the oldest that may still be on its way.
  Staged& staged(size_t age) { return staged_[(next_staged_ + age) % staged_.size()]; }
  // Waits for the copy into it. Older ones come first: the micro-batches of a tensor are added in order.
  void accumulate(Staged& from);
  void accumulate_all();
  // Those of the chunk that are on their way, and what landed before them.
  void accumulate_staged(ChunkId chunk);
  // Without a gradient zeros land.
  void add_runs(const GradientLanding& landing, std::byte* accumulator, const std::byte* gradient);
  void add_block(const GradientLanding& landing, uint64_t block, std::byte* accumulator,
                 const std::byte* gradient);
  bool is_last(const GradientLanding& landing) const {
    return landing.micro_batch + 1 == accumulation_steps_;
  }
  void add_zero(const GradientLanding& landing);
  void spill_zero(const GradientLanding& landing);
  void finish_next();
  CopyNote landing_note(ChunkId chunk) const;
  void displace(ChunkId chunk);
  // Takes a landing slot of spilled gradients, after what is landing in it is on its way out.
  void begin_spilling(const GradientLanding& landing);
  std::span<double> sums_of(ChunkId chunk);
  void take_sums(ChunkId chunk, const std::byte* gradient);
  void land_in_staging(const GradientLanding& landing);
  void land_on_device(const GradientLanding& landing);
  // The same as add_runs(), where the device computes.
  void add_runs_there(const GradientLanding& landing, std::byte* accumulator, const std::byte* gradient);
  // Of all that have landed there.
  void take_device_sums();

  const FlatSpace& space_;
  Device& device_;
  DeviceCache& cache_;
  const ParamHome& home_;
  SpilledGradients* spilled_;  // null where nothing is
  Workers& workers_;
  InstructionSet instruction_set_;
  DeviceArithmetic* const device_arithmetic_;  // null where the workers compute
  std::optional<DeviceSums> device_sums_;
  bool on_device_;
  uint32_t accumulation_steps_;
  bool accumulates_;
  DataType accumulation_type_;
  const bool layer_major_;
  const bool takes_over_;
  const bool dry_;                 // nothing is computed with
  std::vector<std::byte*> slots_;  // per chunk: host slot, host accumulator or device address; or null
  std::vector<bool> displaced_;    // per chunk
  // Per chunk: its gradient of this step is complete in slots_, and its sums are known.
  std::unique_ptr<std::atomic<bool>[]> landed_;
  std::vector<DeviceSlot> accumulators_;  // per chunk, states on the device
  std::vector<Staged> staged_;
  std::vector<Leaving> leaving_;  // in the order of the copies; the first finished_ of them are done with
  size_t finished_ = 0;
  uint32_t next_staged_ = 0;         // the oldest
  std::span<double> sums_;           // of the blocks of all trainable chunks, in the order of the flat space
  std::vector<uint64_t> first_sum_;  // per chunk, and one more entry
  uint64_t d2h_bytes_ = 0;
};

}  // namespace terrace
