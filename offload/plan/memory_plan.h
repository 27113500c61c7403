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

// The bytes of a block of parameters on nvme, the unit of I/O and checksum, for chunks that are at least as
// large.
inline constexpr uint64_t kParamBlockBytes = kMiB;

// Heap memory of the Offloader and its flat space per chunk: the chunk's place, its state, and the places of
// its few blocks on nvme. A test measures it.
inline constexpr uint64_t kBookkeepingBytesPerChunk = 704;

struct MemoryPlan {
  RecordLayout record_layout;

  // Device. Slots of one size hold parameters and gradients alike; the other pools exist where states live on
  // the device.
  uint64_t work_bytes = 0;
  uint64_t slot_bytes = 0;  // E elements of the widest parameter type
  uint32_t device_slots = 0;
  // For the announced uses; without any, for every tensor by itself: its parameters and its gradient.
  uint32_t device_slots_minimum = 0;
  // Slots that leases leave to gradients that are handed over while they are open: to all that stay on the
  // device, or to those that pass through it.
  uint32_t device_gradient_slots = 0;
  uint32_t device_slots_useful = 0;  // more slots would stay empty
  std::string device_peak_operation;
  uint32_t device_record_slots = 0;       // states placed on the device: one per trainable chunk
  uint64_t record_slot_bytes = 0;         // the records of E elements
  uint32_t device_accumulator_slots = 0;  // accumulators of gradients, with several micro-batches
  uint64_t accumulator_slot_bytes = 0;
  uint32_t device_activation_entries = 0;  // entries that stay on the device, beside the work memory
  uint32_t device_activation_entries_useful = 0;
  uint64_t device_granularity_bytes = 1;
  uint64_t device_activation_bytes() const {
    return round_up(device_activation_entries * activation_entry_bytes, device_granularity_bytes);
  }
  // By chunk: true if the device updates it while its states live below the device (update_side.h).
  std::vector<bool> device_side;
  uint32_t device_update_chunks() const {
    return static_cast<uint32_t>(std::ranges::count(device_side, true));
  }
  // The number of lanes of DeviceLanes for these chunks; 0: there are no such chunks. A lane holds a run of
  // tiles: records, gradients and parameters.
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
  uint64_t device_share_bytes = 0;  // this rank's shares of all parameters, where these are divided there
  // Parts of gradients: those that come from host memory to accumulators on the device, one at a time; or,
  // where gradients go from device to device, those of every landing that is on its way: of the other ranks,
  // and the own one too where they are added on the device.
  uint64_t device_incoming_bytes = 0;
  // Slots of a chunk for gradients that are handed over on the device and leave for other ranks, one for each
  // landing slot.
  uint32_t device_handed_slots = 0;
  uint64_t device_handed_bytes() const { return device_handed_slots * slot_bytes; }
  uint64_t device_exchange_bytes() const { return device_incoming_bytes + device_handed_bytes(); }
  uint64_t device_bytes = 0;
  uint64_t device_minimum_bytes = 0;

  // Ranks. Everything below the device is divided: a rank has its share of every chunk, and of a chunk whose
  // tiles cannot be divided evenly as much as the first rank.
  uint64_t share_bytes = 0;  // of the parameters of E elements; slot_bytes where there is one rank
  // What comes to the host of the gradients of other ranks, one for each landing slot; none where gradients
  // go from device to device and are added there.
  uint32_t incoming_slots = 0;
  uint64_t incoming_slot_bytes = 0;  // with the sums of groups that go to other hosts and come from there
  uint64_t group_sum_bytes = 0;      // of the sum of a group over a share; 0: none is made on its way
  uint64_t group_code_bytes = 0;     // of the codes that it crosses as; 0: it crosses as it is
  // Parameters that have come from other hosts: of so many chunks, the first ones, which leave the device
  // before they are needed again.
  uint32_t kept_gathers = 0;
  uint64_t kept_gather_bytes = 0;  // of a chunk, the shares for which this rank stands on its host
  uint32_t gather_slots = 0;  // of slot_bytes: parameters of other ranks on their way to the device by copies
  // Shares of a chunk on their way between hosts as codes: the own one, and one from each other host.
  uint32_t code_slots = 0;
  uint64_t code_slot_bytes = 0;

  // Host. Slots of share_bytes are homes of parameters and stage them; slots of slot_bytes hold gradients.
  uint32_t host_param_slots = 0;         // cpu: every chunk; nvme: the resident ones
  uint32_t host_frozen_param_slots = 0;  // of host_param_slots, for frozen chunks
  // True if the gradient of a chunk whose parameters have a host slot lands in that slot, where the new
  // parameters are made as well.
  bool gradients_take_over = false;
  uint32_t host_gradient_slots = 0;  // beside the slots that gradients take over
  uint32_t host_accumulator_slots = 0;
  // Gradients that the host budget has no room for are spilled to nvme. They pass through landing slots on
  // their way there, and through staging slots on their way to the update.
  uint32_t spilled_chunks = 0;
  uint32_t spill_slots = 0;          // of each of the two kinds
  uint64_t spill_slot_bytes = 0;     // of a gradient in the precision in which it is held
  uint64_t gradient_sum_bytes = 0;   // sums of squares, one per block of the norm, as HostArena counts bytes
  uint32_t staging_slots = 0;        // parameters on their way from the tier file
  uint32_t answer_slots = 0;         // of share_bytes: parameters from there that other ranks pull
  uint32_t old_parameter_slots = 0;  // compact state: parameters on their way into an update
  uint32_t landing_slots = 0;        // gradients before they are accumulated, parameters on their way out
  uint64_t landing_slot_bytes = 0;   // of a chunk, or of a share where gradients go from device to device
  uint32_t host_record_slots = 0;    // cpu: every trainable chunk; nvme: the resident ones
  uint32_t host_activation_entries = 0;
  uint32_t nvme_activation_entries = 0;
  uint32_t activation_slots = 0;        // the slots that entries on nvme pass through
  uint64_t activation_entry_bytes = 0;  // a multiple of HostArena::kAlignment
  uint64_t host_activation_bytes() const {
    return (host_activation_entries + activation_slots) * activation_entry_bytes;
  }
  // The most that saved activations may take of the host budget. They take it when they come: it is not part
  // of host_bytes.
  uint64_t saved_activation_bytes = 0;
  uint32_t ring_slots = 0;  // blocks of RecordLayout::block_tiles()
  uint64_t ring_slot_bytes = 0;
  uint32_t commit_slots = 0;  // blocks for reading a pinned commit while training goes on
  uint64_t commit_slot_bytes = 0;
  uint64_t matrix_bytes = 0;       // for the steps of whole matrices (MatrixGroups::host_bytes)
  uint64_t bookkeeping_bytes = 0;  // heap memory beside the arena
  uint64_t host_bytes = 0;
  uint64_t host_minimum_bytes = 0;
  uint64_t host_holding_bytes = 0;  // the least with which no gradient is spilled

  // Drives. There is room for every chunk, resident or not, so that a budget may shrink later. With commits,
  // records have a second slot for every block, one slot for each block of the ring, and one slot per block
  // for every retained commit, so an update waits for room only while a commit is in progress.
  bool keeps_commits = false;
  std::string why_no_commits;
  uint32_t parameter_chunks = 0;  // all but those of the caller's tensors
  uint32_t record_chunks = 0;     // trainable ones
  uint32_t caller_chunks = 0;     // of record_chunks: their parameters are the program's
  uint32_t frozen_chunks() const { return parameter_chunks + caller_chunks - record_chunks; }
  uint64_t record_spare_slots = 0;  // each of ring_slot_bytes, beyond one for each block
  uint64_t frozen_spare_slots = 0;  // each of param_block_bytes()
  // Spare slots of trained parameters where these are part of commits (compact state): they are written like
  // records then, and are in the tier wherever they live.
  uint64_t parameter_spare_slots = 0;
  uint64_t parameter_file_bytes = 0;
  uint64_t frozen_file_bytes = 0;  // of parameter_file_bytes, frozen parameters in a file of their own
  uint64_t record_file_bytes = 0;
  // Spilled gradients and checkpointed activations are written in place and are never part of a commit.
  uint64_t gradient_file_bytes = 0;
  uint64_t activation_file_bytes = 0;
  uint64_t file_bytes() const {
    return parameter_file_bytes + record_file_bytes + gradient_file_bytes + activation_file_bytes;
  }

  // The unit of I/O and checksum of parameters.
  uint64_t param_block_bytes() const { return std::min(kParamBlockBytes, share_bytes); }
  // The unit of I/O and checksum of spilled gradients.
  uint64_t spill_block_bytes() const { return std::min(kParamBlockBytes, spill_slot_bytes); }
  // The unit of I/O and checksum of activations.
  uint64_t activation_block_bytes() const { return std::min(kParamBlockBytes, activation_entry_bytes); }
};

// Plans the memory of a run. If `trace` is empty, the device gets as many slots as its budget holds, at least
// those that any tensor needs by itself (least_slots), and an operation that needs more fails when it runs.
// Throws ShortageError (budget_shortage.h), an Error(capacity),
// with the least budget that would do.
MemoryPlan plan_memory(const SpaceLayout& space, std::span<const TensorUse> trace,
                       const OffloadOptions& options);

// By chunk: true if it is trained and its gradient is on nvme between landing and update. Spilled chunks are
// spread evenly among the others.
std::vector<bool> spilled_gradients(const SpaceLayout& space, const MemoryPlan& plan);

// The reason why a run with these options keeps no commits, in words for the log; empty if it keeps them.
std::string reason_without_commits(const SpaceLayout& space, const OffloadOptions& options);

// True if commits hold parameters of their own, because records do not hold whole masters.
inline bool has_parameters_in_commits(const MemoryPlan& plan) {
  return plan.keeps_commits && plan.record_layout.master == MasterForm::remainder;
}

// The type in which a section's gradients are held until the update: with several micro-batches that of their
// sums.
DataType held_gradient_type(const Section& section, const OffloadOptions& options);

// The device bytes beyond which more would stay unused.
uint64_t useful_device_bytes(const MemoryPlan& plan);

// The chunk sizes that are worth trying: powers of two of elements, at most `largest` (0: 16 Mi), the largest
// first. Sizes that make only a handful of chunks are left out, since they would leave nothing to move.
std::vector<uint64_t> chunk_sizes(const std::vector<TensorSpec>& tensors, const OffloadOptions& options,
                                  uint64_t largest);

// The chunk size for a budget: the largest power of two of elements, at most `largest` (0: 16 Mi), whose plan
// fits with twice the slots that it needs, so that fetches run ahead. If none does, it is the largest size
// that leaves nearly as much device memory to fetch ahead as any. A smaller size is chosen where it leaves so
// much more host memory for resident data that a tenth less goes over nvme. If `trace` is empty, what it
// needs is what any tensor needs by itself. If no size fits, throws
// ShortageError for the size with the smallest shortage.
uint64_t choose_chunk_elements(const std::vector<TensorSpec>& tensors, std::span<const TensorUse> trace,
                               const OffloadOptions& options, uint64_t largest);

}  // namespace terrace
