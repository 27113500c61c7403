// MemoryPlan: how every byte of every budget is spent, decided before anything is allocated.
// The allocators take exactly what the plan says; a plan that does not fit is refused with its minimum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/units.h>
#include <terrace/memory/space/space_layout.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/use_trace.h>

namespace terrace {

// Bytes in a block of parameters on nvme, the unit of I/O and checksum, when chunks are that large.
inline constexpr uint64_t kParamBlockBytes = kMiB;

// What the Offloader and its flat space know of one chunk, in heap memory: where it is, how far it is, and of
// a few blocks of it on nvme where they lie. A test measures it.
inline constexpr uint64_t kBookkeepingBytesPerChunk = 704;

struct MemoryPlan {
  RecordLayout record_layout;

  // Device. Slots of one size hold parameters and gradients alike; the other pools exist where states live
  // there.
  uint64_t work_bytes = 0;
  uint64_t slot_bytes = 0;  // E elements of the widest parameter type
  uint32_t device_slots = 0;
  uint32_t device_slots_minimum = 0;  // for the announced uses; 1 when none were announced
  uint32_t device_slots_useful = 0;   // more would stay empty
  std::string device_peak_operation;
  uint32_t device_record_slots = 0;       // states placed on the device: one per trainable chunk
  uint64_t record_slot_bytes = 0;         // the records of E elements
  uint32_t device_accumulator_slots = 0;  // gradients there, when micro-batches accumulate
  uint64_t accumulator_slot_bytes = 0;
  uint32_t device_activation_entries = 0;  // beside the work memory
  uint32_t device_activation_entries_useful = 0;
  uint64_t device_granularity_bytes = 1;
  uint64_t device_activation_bytes() const {
    return round_up(device_activation_entries * activation_entry_bytes, device_granularity_bytes);
  }
  // By chunk: whether it is updated on the device while its states live below it (update_side.h).
  std::vector<bool> device_side;
  uint32_t device_update_chunks() const {
    return static_cast<uint32_t>(std::ranges::count(device_side, true));
  }
  // Lanes of DeviceLanes, for these chunks; 0: there are none. A lane holds a run of tiles: records,
  // gradients and parameters.
  uint32_t device_lanes = 0;
  uint64_t device_lane_tiles = 0;
  uint64_t device_lane_gradient_bytes = 0;
  uint64_t device_lane_parameter_bytes = 0;
  uint64_t device_lane_bytes() const {
    return device_lane_tiles * record_layout.tile_bytes() + device_lane_gradient_bytes +
           device_lane_parameter_bytes;
  }
  uint64_t device_lanes_bytes() const {
    return round_up(device_lanes * device_lane_bytes(), device_granularity_bytes);
  }
  uint64_t device_bytes = 0;
  uint64_t device_minimum_bytes = 0;

  // Host. Slots of slot_bytes serve as homes of parameters, as gradients and for staging.
  uint32_t host_param_slots = 0;         // cpu: every chunk; nvme: the cached ones
  uint32_t host_frozen_param_slots = 0;  // of these, of chunks that are not trained
  // The gradient of a chunk whose parameters have a host slot lands there, and its new parameters are made
  // there.
  bool gradients_take_over = false;
  uint32_t host_gradient_slots = 0;  // beside those
  uint32_t host_accumulator_slots = 0;
  // Gradients that the budget has no room for lie on nvme and pass through slots on their way there, and
  // through others on their way to the update.
  uint32_t spilled_chunks = 0;
  uint32_t spill_slots = 0;          // of either kind
  uint64_t spill_slot_bytes = 0;     // of a gradient as it is held
  uint64_t gradient_sum_bytes = 0;   // of squares, one per block of the norm; as HostArena counts them
  uint32_t staging_slots = 0;        // parameters on their way from the tier file
  uint32_t old_parameter_slots = 0;  // compact state: parameters on their way into an update
  uint32_t landing_slots = 0;        // gradients before they are accumulated, parameters on their way out
  uint32_t host_record_slots = 0;    // cpu: every trainable chunk; nvme: the cached ones
  uint32_t host_activation_entries = 0;
  uint32_t nvme_activation_entries = 0;
  uint32_t activation_slots = 0;        // through which the latter pass
  uint64_t activation_entry_bytes = 0;  // a multiple of HostArena::kAlignment
  uint64_t host_activation_bytes() const {
    return (host_activation_entries + activation_slots) * activation_entry_bytes;
  }
  uint32_t ring_slots = 0;  // blocks of RecordLayout::block_tiles()
  uint64_t ring_slot_bytes = 0;
  uint32_t epoch_slots = 0;  // through which a commit is read while training goes on
  uint64_t epoch_slot_bytes = 0;
  uint64_t bookkeeping_bytes = 0;  // beside the arena
  uint64_t host_bytes = 0;
  uint64_t host_minimum_bytes = 0;
  uint64_t host_holding_bytes = 0;  // the least with which no gradient is spilled

  // Disk: room for every chunk, cached or not, so that a budget may shrink later. Where commits are kept,
  // records have a second slot for every block, one for each block of the ring, and as many as there are
  // blocks for every retained commit: an update never waits for room but while a commit is on its way.
  bool keeps_epochs = false;
  std::string why_no_epochs;
  uint32_t parameter_chunks = 0;    // all
  uint32_t record_chunks = 0;       // trainable ones
  uint64_t record_spare_slots = 0;  // of ring_slot_bytes, beyond one for each block
  uint64_t frozen_spare_slots = 0;  // of kParamBlockBytes or a chunk's parameters
  // Of these, where parameters are part of commits (compact state): they are written like records then, and
  // are in the tier wherever they live.
  uint64_t parameter_spare_slots = 0;
  uint64_t parameter_file_bytes = 0;
  uint64_t frozen_file_bytes = 0;  // of these, in a file of their own
  uint64_t record_file_bytes = 0;
  // In place and never part of a commit:
  uint64_t gradient_file_bytes = 0;    // spilled ones
  uint64_t activation_file_bytes = 0;  // checkpointed ones
  uint64_t file_bytes() const {
    return parameter_file_bytes + record_file_bytes + gradient_file_bytes + activation_file_bytes;
  }

  // The unit of I/O and checksum of parameters.
  uint64_t param_block_bytes() const { return std::min(kParamBlockBytes, slot_bytes); }
  // The same of spilled gradients.
  uint64_t spill_block_bytes() const { return std::min(kParamBlockBytes, spill_slot_bytes); }
  // The same of activations.
  uint64_t activation_block_bytes() const { return std::min(kParamBlockBytes, activation_entry_bytes); }
};

// `trace` may be empty: then the device gets what its budget holds and an operation that needs more fails
// when it is met. Throws ShortageError (budget_shortage.h), an Error(capacity), with the least that would do.
MemoryPlan plan_memory(const SpaceLayout& space, std::span<const TensorUse> trace,
                       const OffloadOptions& options);

// By chunk: whether it is trained and its gradient is on nvme between landing and update. What is spilled is
// spread evenly among what is not.
std::vector<bool> spilled_gradients(const SpaceLayout& space, const MemoryPlan& plan);

// Why a run with these options keeps no commits, in words for the log; empty when it has.
std::string reason_without_epochs(const SpaceLayout& space, const OffloadOptions& options);

// Whether commits have parameters of their own: where records do not hold whole masters.
inline bool has_parameters_in_epochs(const MemoryPlan& plan) {
  return plan.keeps_epochs && plan.record_layout.master == MasterForm::remainder;
}

// The device bytes beyond which more would stay unused.
uint64_t useful_device_bytes(const MemoryPlan& plan);

// The sizes of chunks that are worth trying: powers of two of elements, at most `largest` (0: 16 Mi), the
// largest first. A handful of chunks would leave nothing to move.
std::vector<uint64_t> chunk_sizes(const std::vector<TensorSpec>& tensors, const OffloadOptions& options,
                                  uint64_t largest);

// The chunk size for a budget: the largest power of two of elements, at most `largest` (0: 16 Mi), whose plan
// fits with twice the slots that it needs, so that fetches run ahead; failing that, the largest that leaves
// nearly as much device memory to fetch ahead as any. A smaller one, where it leaves so much more of the host
// budget to what is kept there that a tenth less goes over nvme. Throws ShortageError, of the size of which
// least is missing, when none fits.
uint64_t choose_chunk_elements(const std::vector<TensorSpec>& tensors, std::span<const TensorUse> trace,
                               const OffloadOptions& options, uint64_t largest);

}  // namespace terrace
