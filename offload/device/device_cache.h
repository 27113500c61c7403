// DeviceCache: which chunks have parameters or gradients in device memory, and under which addresses.
//
// The flat parameter range and the flat gradient range are address space; a chunk is there while a slot is
// attached at its place. Slots of one pool serve both. A slot is in exactly one of these conditions:
//
//   free      nobody's
//   leaving   nobody's, but a copy out of it is under way: whoever takes it orders itself after slot.out
//   param     holds the parameters of one chunk (fetching: their copy is under way; resident: it is done)
//   gradient  holds the gradient of one chunk
//
// Every decision depends on the sequence of calls alone, never on when a copy happens to finish.
// Used by the step thread only.
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

struct CacheSlot {
  DeviceSlot id{};
  DeviceCopy in;   // the last copy into the slot, or read of it
  DeviceCopy out;  // the last copy out of the slot
  Event fence;     // orders the to-device stream after `out` when a copy must also wait for something else
  // While `in` is not done: the read from nvme that the copy into the slot is queued behind, or null.
  const Event* read = nullptr;
};

enum class StaleParams : uint8_t { trainable, all };

class DeviceCache final : public GuardDescriber {
 public:
  // `parameters` is where they live: what lives on the device is never evicted, there is no other copy.
  DeviceCache(const FlatSpace& space, Device& device, const MemoryPlan& plan, Placement parameters,
              PolicyKind policy, TensorStates& states, StepWatch& watch, Decisions& decisions);
  ~DeviceCache() override;

  // --- Parameters ---
  ChunkState param_state(ChunkId chunk) const { return params_[index_of(chunk)].state; }
  // Gives the chunk a slot for its parameters: absent -> fetching. The caller starts the copy into it
  // (slot.in).
  CacheSlot& begin_fetch(ChunkId chunk, CacheSlot& slot);
  // The operation whose use has begun needs that fetch: it was not ahead of anything.
  void note_demand(ChunkId chunk) { params_[index_of(chunk)].on_demand = true; }
  // When a fetch was begun that is served for the first time now, where it was recorded.
  struct Asked {
    uint64_t at_ns = 0;
    bool on_demand = false;
  };
  std::optional<Asked> take_asked(ChunkId chunk);
  // A pinned chunk stays on the device (or on its way there), whatever its state.
  void pin_param(ChunkId chunk) { ++params_[index_of(chunk)].pins; }
  // Waits for the copy and attaches the slot of a pinned chunk at its address: fetching or resident ->
  // resident. Throws what made the copy fail; the chunk is then absent again.
  void attach_param(ChunkId chunk);
  void unpin_param(ChunkId chunk);
  // Gives the chunk a slot that an operation is about to fill with its parameters: absent -> resident.
  void begin_in_place(ChunkId chunk, CacheSlot& slot);
  // A resident copy that is worthless: resident -> absent, its slot becomes free. The chunk must not be
  // pinned, and may be absent, or on its way: that is waited for.
  void drop_stale_param(ChunkId chunk);
  // Drops the copies whose parameters have a newer version elsewhere: after an update those of the trainable
  // sections. Copies under way are waited for.
  void drop_params(StaleParams stale);
  std::byte* param_address(ChunkId chunk) const { return param_base_ + index_of(chunk) * slot_bytes_; }
  std::byte* param_base() const { return param_base_; }
  // The slot of a chunk that has one.
  CacheSlot& param_slot(ChunkId chunk);
  // Detaches a resident chunk's slot so that copies can act on it.
  void detach_param(ChunkId chunk);

  // --- Gradients ---
  bool has_gradient(ChunkId chunk) const { return gradients_[index_of(chunk)].slot != kNone; }
  // Attaches the slot at the chunk's gradient address and clears it.
  void begin_gradient(ChunkId chunk, CacheSlot& slot);
  void pin_gradient(ChunkId chunk);
  void unpin_gradient(ChunkId chunk);
  // Detaches the gradient's slot for a copy out (the caller starts it on slot.out); the chunk has no gradient
  // any more and the slot is leaving.
  CacheSlot& release_gradient(ChunkId chunk);
  // The same without a copy: the slot becomes free.
  void drop_gradient(ChunkId chunk);
  std::byte* gradient_address(ChunkId chunk) const { return gradient_base_ + index_of(chunk) * slot_bytes_; }
  std::byte* gradient_base() const { return gradient_base_; }

  // --- Slots ---
  // A slot for a chunk: a free one, else one that is leaving, else that of the victim which the policy
  // chooses among resident, unpinned chunks whose tensors all hold. Null when there is none.
  CacheSlot* take_slot(const EvictionContext& context);
  // A slot that is free or leaving, or null.
  CacheSlot* take_unused();
  // The slot of the chunk's parameters becomes free; false where they may not leave.
  bool make_leave(ChunkId chunk);
  // For a fetch ahead of time: like take_slot, but no victim is needed again within this step in `distance`
  // uses or fewer, and `reserved` slots remain that could be taken in the same way.
  CacheSlot* take_slot_ahead(const EvictionContext& context, uint32_t distance, uint32_t reserved);
  void give_back(CacheSlot& slot);
  // How many slots take_slot could still give without evicting.
  uint32_t unused_slot_count() const { return static_cast<uint32_t>(free_.size() + leaving_.size()); }
  uint32_t slot_count() const { return slot_count_; }
  uint32_t gradient_slot_count() const { return gradient_slot_count_; }
  // The chunks whose parameters have a slot, ascending; valid until the next call.
  std::span<const ChunkId> residents();

  // The copy into the chunk's slot that may be on its way: of a fetch, or of new parameters that live on the
  // device; null where there is none.
  const DeviceCopy* arriving(ChunkId chunk) const;
  // Where whoever moves chunks says what it waits for.
  StepWatch& watch() { return watch_; }

  // Waits until no copy touches any slot; failures are left to whoever uses the slot next.
  void drain() const noexcept;

  void note_use(ChunkId chunk) {
    policy_->on_use(chunk);
    ++params_[index_of(chunk)].uses;
  }
  uint64_t eviction_count() const { return eviction_count_; }
  // Records which chunks have slots now.
  void record_slots() const;
  bool strict() const { return device_.strict(); }
  // For messages about a stray access to the flat ranges.
  void describe(const std::byte* address, SignalSafeText& out) const noexcept override;
  void set_last_operation(std::string_view operation) { last_operation_ = operation; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct ParamEntry {
    ChunkState state = ChunkState::absent;
    uint32_t slot = kNone;
    uint32_t pins = 0;
    uint32_t uses = 0;  // since it came
    bool attached = false;
    bool on_demand = false;    // of the fetch,
    uint64_t asked_at_ns = 0;  // and when it was begun; 0: it was not recorded, or has been served
  };
  struct GradientEntry {
    uint32_t slot = kNone;
    uint32_t pins = 0;
    bool attached = false;
  };

  void set_state(ChunkId chunk, ChunkState state);
  void hold_param(ChunkId chunk, CacheSlot& slot);
  uint32_t index_in_pool(const CacheSlot& slot) const { return static_cast<uint32_t>(&slot - slots_.get()); }
  bool may_leave(ChunkId chunk) const;
  // That of a replay, or the policy's.
  ChunkId choose_victim(const EvictionContext& context);
  // Fills candidates_ with what take_slot may evict; ascending.
  void collect_candidates();
  std::exception_ptr finish_fetch(ChunkId chunk);
  void leave_slot(ChunkId chunk);
  void drop_param(ChunkId chunk);
  // For whoever records steps.
  void note_slot(TraceKind kind, TransferRole role, ChunkId chunk) const {
    if (is_recording(watch_.events())) record_slot(kind, role, chunk);
  }
  void record_slot(TraceKind kind, TransferRole role, ChunkId chunk) const;
  // Waits for fetches nobody leased yet, so that their chunks may leave; only when nothing else can.
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
  std::vector<ChunkId> candidates_;       // kept for its memory, as is the next
  std::vector<ChunkId> residents_;
  uint64_t eviction_count_ = 0;
  uint32_t param_slot_count_ = 0;     // that hold parameters, or will,
  uint32_t gradient_slot_count_ = 0;  // and gradients
  std::string last_operation_;
  std::vector<std::unique_ptr<StrictGuard>> guards_;
};

}  // namespace terrace
