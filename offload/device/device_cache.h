// DeviceCache: the chunks that have parameters or gradients in device memory, and their addresses.
//
// The flat parameter range and the flat gradient range are address space; a chunk is there while a slot is
// attached at its place. Slots of one pool serve both. A slot is in exactly one of these conditions:
//
//   free      nobody's
//   leaving   nobody's, but a copy out of it is under way: whoever takes it orders itself after slot.out
//   param     holds the parameters of one chunk (fetching: their copy is under way; resident: it is done)
//   gradient  holds the gradient of one chunk
//
// Every decision depends on the sequence of calls alone, never on when a copy happens to finish. Only the
// step thread uses it.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/event.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/device/strict_guard.h>
#include <terrace/memory/space/eviction_policy.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/transfer/device_copy.h>
#include <terrace/offload/watch/decision_log.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// How bytes of other ranks come into a slot beside those that are fetched.
enum class SlotFilling : uint8_t { none, by_others, by_copies };

struct CacheSlot {
  DeviceSlot id{};
  SlotFilling filling = SlotFilling::none;  // else `in` says when it is over
  DeviceCopy in;                            // the last copy or file read into the slot
  DeviceCopy out;                           // the last copy out of the slot
  Event fence;  // orders the to-device stream after `out` when a copy must also wait for something else
  // The read from nvme that the copy into the slot is queued behind, or null; valid while `in` is not done.
  const Event* read = nullptr;
};

enum class StaleParams : uint8_t { trainable, all };

class DeviceCache final : public GuardDescriber {
 public:
  // `parameters` is the placement of parameters: those that live on the device are never evicted, since there
  // is no other copy, unless the plan has shares of them.
  DeviceCache(const FlatSpace& space, Device& device, const MemoryPlan& plan, Placement parameters,
              PolicyKind policy, TensorStates& states, StepWatch& watch, Decisions& decisions);
  ~DeviceCache() override;

  // --- Parameters ---
  ChunkState param_state(ChunkId chunk) const { return params_[index_of(chunk)].state; }
  // Gives the chunk a slot for its parameters: absent -> fetching. The caller starts the copy into it
  // (slot.in).
  CacheSlot& begin_fetch(ChunkId chunk, CacheSlot& slot);
  // Notes that the open use needed the chunk's fetch when it was begun: it was not ahead of time.
  void note_demand(ChunkId chunk) { params_[index_of(chunk)].on_demand = true; }
  // take_asked() tells, once per recorded fetch, when it was begun and whether it was on demand.
  struct Asked {
    uint64_t at_ns = 0;
    bool on_demand = false;
  };
  std::optional<Asked> take_asked(ChunkId chunk);
  // A pinned chunk stays on the device (or on its way there), whatever its state.
  void pin_param(ChunkId chunk) { pinned_count_ += params_[index_of(chunk)].pins++ == 0 ? 1 : 0; }
  bool is_pinned(ChunkId chunk) const { return params_[index_of(chunk)].pins > 0; }
  // Waits for the copy and attaches the slot of a pinned chunk at its address: fetching or resident ->
  // resident. Throws the copy's failure; the chunk is then absent again.
  void attach_param(ChunkId chunk);
  void unpin_param(ChunkId chunk);
  // Gives the chunk a slot that is about to be filled with its parameters: absent -> resident.
  void begin_in_place(ChunkId chunk, CacheSlot& slot);
  // Drops an out-of-date copy: resident -> absent, and its slot becomes free. The chunk must not be pinned.
  // It may be absent; a copy on its way is waited for.
  void drop_stale_param(ChunkId chunk);
  // Drops the copies of all parameters, or of the trainable sections, because newer ones are elsewhere.
  // Copies under way are waited for.
  void drop_params(StaleParams stale);
  std::byte* param_address(ChunkId chunk) const { return param_base_ + index_of(chunk) * slot_bytes_; }
  std::byte* param_base() const { return param_base_; }
  // The slot of the chunk's parameters; the chunk must have one.
  CacheSlot& param_slot(ChunkId chunk);
  // Detaches a resident chunk's slot so that copies can act on it.
  void detach_param(ChunkId chunk);

  // --- Gradients ---
  bool has_gradient(ChunkId chunk) const { return gradients_[index_of(chunk)].slot != kNone; }
  // Attaches the slot at the chunk's gradient address and clears it.
  void begin_gradient(ChunkId chunk, CacheSlot& slot);
  void pin_gradient(ChunkId chunk);
  void unpin_gradient(ChunkId chunk);
  // Copies a run of elements, in memory of the program, to its place in the chunk's gradient, which is
  // cleared and given a slot first where it has none. Returns the bytes copied when the copy is over. Throws
  // Error(capacity) when all slots are taken.
  uint64_t fill_gradient(ChunkId chunk, uint64_t first_element, const std::byte* elements, uint64_t count,
                         const EvictionContext& now);
  // Detaches the gradient's slot for a copy out (the caller starts it on slot.out); the chunk has no gradient
  // any more and the slot is leaving.
  CacheSlot& release_gradient(ChunkId chunk);
  // Drops the chunk's gradient without a copy: the slot becomes free.
  void drop_gradient(ChunkId chunk);
  std::byte* gradient_address(ChunkId chunk) const { return gradient_base_ + index_of(chunk) * slot_bytes_; }
  std::byte* gradient_base() const { return gradient_base_; }

  // --- Slots ---
  // Takes a slot for a chunk: a free one, else one that is leaving, else that of the policy's victim among
  // resident, unpinned chunks whose tensors all hold. Null when there is none.
  CacheSlot* take_slot(const EvictionContext& context);
  // Takes a slot that is free or leaving; null when there is none.
  CacheSlot* take_unused();
  // Evicts the chunk's parameters, whose slot becomes free. Returns false where they may not leave.
  bool make_leave(ChunkId chunk);
  // Takes a slot for a fetch ahead of time. It works as take_slot, but no victim is needed again within this
  // step in `distance` uses or fewer, and `reserved` slots remain that could be taken in the same way.
  CacheSlot* take_slot_ahead(const EvictionContext& context, uint32_t distance, uint32_t reserved);
  void give_back(CacheSlot& slot);
  // Gives the bytes of a detached slot to somebody who fills them beside the copies, until slot.in is done.
  std::byte* begin_filling(CacheSlot& slot);
  // Notes that copies fill the detached slot until slot.in is done.
  void begin_copying_in(CacheSlot& slot);
  uint32_t number_of(const CacheSlot& slot) const { return static_cast<uint32_t>(&slot - slots_.get()); }
  // The number of slots that take_slot could still give without evicting.
  uint32_t unused_slot_count() const { return static_cast<uint32_t>(free_.size() + leaving_.size()); }
  uint32_t slot_count() const { return slot_count_; }
  uint32_t gradient_slot_count() const { return gradient_slot_count_; }
  // The chunks whose parameters are pinned, those included that have no slot yet.
  uint32_t pinned_count() const { return pinned_count_; }
  // The chunks whose parameters have a slot, ascending; valid until one comes or leaves.
  std::span<const ChunkId> residents() const { return residents_; }

  // The copy into the chunk's slot that may be on its way, of a fetch or of new parameters that live on the
  // device; null where there is none.
  const DeviceCopy* arriving(ChunkId chunk) const;
  // The watch for waits of the classes that move chunks.
  StepWatch& watch() { return watch_; }

  // Waits until no copy touches any slot; failures are left to the next user of the slot.
  void drain() const noexcept;

  void note_use(ChunkId chunk) {
    policy_->on_use(chunk);
    ++params_[index_of(chunk)].uses;
  }
  uint64_t eviction_count() const { return eviction_count_; }
  // Records the chunks that have slots now.
  void record_slots() const;
  bool strict() const { return device_.strict(); }
  // Describes the address, for messages about a stray access to the flat ranges.
  void describe(const std::byte* address, SignalSafeText& out) const noexcept override;
  void set_last_operation(std::string_view operation) { last_operation_ = operation; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct ParamEntry {
    ChunkState state = ChunkState::absent;
    uint32_t slot = kNone;
    uint32_t pins = 0;
    uint32_t uses = 0;  // uses since the copy arrived
    bool attached = false;
    bool on_demand = false;    // the fetch was on demand
    uint64_t asked_at_ns = 0;  // when the fetch was begun; 0: not recorded, or taken
  };
  struct GradientEntry {
    uint32_t slot = kNone;
    uint32_t pins = 0;
    bool attached = false;
  };

  void set_state(ChunkId chunk, ChunkState state);
  void hold_param(ChunkId chunk, CacheSlot& slot);
  bool may_leave(ChunkId chunk) const;
  // Fills candidates_ with the chunks that take_slot may evict, ascending.
  void collect_candidates();
  std::exception_ptr finish_fetch(ChunkId chunk);
  void end_filling(CacheSlot& slot);
  void leave_slot(ChunkId chunk);
  void drop_param(ChunkId chunk);
  // Records the event where steps are recorded.
  void note_slot(TraceKind kind, TransferRole role, ChunkId chunk) const {
    if (is_recording(watch_.events())) record_slot(kind, role, chunk);
  }
  void record_slot(TraceKind kind, TransferRole role, ChunkId chunk) const;
  // Waits for the fetches under way, so that their chunks may leave; used only when no other chunk can.
  void settle_fetches();

  const FlatSpace& space_;
  Device& device_;
  const bool params_may_leave_;
  TensorStates& states_;
  StepWatch& watch_;
  Decisions& decisions_;
  std::unique_ptr<EvictionPolicy> policy_;
  uint64_t slot_bytes_;
  uint32_t slot_count_;
  std::unique_ptr<CacheSlot[]> slots_;
  std::byte* param_base_;
  std::byte* gradient_base_;
  std::vector<ParamEntry> params_;        // per chunk
  std::vector<GradientEntry> gradients_;  // per chunk
  std::vector<uint32_t> param_of_slot_;   // per slot: the chunk whose parameters it holds, or kNone
  std::vector<uint32_t> free_;            // last in, first out
  std::vector<uint32_t> leaving_;         // first in, first out
  std::vector<ChunkId> residents_;        // ascending: the chunks with a slot for their parameters
  std::vector<ChunkId> candidates_;       // a member so that its memory is reused
  uint64_t eviction_count_ = 0;
  uint32_t pinned_count_ = 0;
  uint32_t param_slot_count_ = 0;     // slots that hold parameters, or will
  uint32_t gradient_slot_count_ = 0;  // slots that hold gradients
  std::string last_operation_;
  std::vector<std::unique_ptr<StrictGuard>> guards_;
};

}  // namespace terrace
