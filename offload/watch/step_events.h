// StepEvents: records the events of chosen steps, from all threads, for timelines and reports. It must never
// decide, wait or allocate while it records. Events without room are counted.
//
// Memory: one buffer of `memory_bytes`, allocated by the constructor and in no budget. Recording threads
// share it without locks; one thread takes the events out between steps, which makes room. A full buffer
// leaves events out, and left_out() says how many.
//
// Steps: `first_step` to `last_step`, from begin_step() of the first to begin_step() of the one after the
// last. A transfer belongs to the step in which it is counted, whenever it ends. All transfers of a chosen
// step are recorded, and no others, so the bytes of a step's transfers equal the step's counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/copy_observer.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/watch/trace_event.h>

namespace terrace {

struct StepEventsOptions {
  uint64_t memory_bytes = 32 << 20;  // at least the size of one event
  uint64_t first_step = 1;
  uint64_t last_step = (uint64_t{1} << 27) - 1;  // the largest step number
};

// TraceFacts: the constants of a run, set by the Offloader's constructor.
struct TraceFacts {
  uint32_t chunk_count = 0;
  uint32_t device_slot_count = 0;  // for parameters and gradients
  uint64_t device_slot_bytes = 0;
  // Device memory beside these slots: work memory, states and accumulators.
  uint64_t device_other_bytes = 0;
  uint64_t device_budget_bytes = 0;
  uint64_t host_budget_bytes = 0;
  uint32_t ring_slot_count = 0;
  uint64_t ring_slot_bytes = 0;
  uint32_t trainable_chunk_count = 0;  // chunks that have records
  std::vector<std::string> nvme_paths;
};

class StepEvents {
 public:
  StepEvents(const Clock& clock, const StepEventsOptions& options);
  ~StepEvents();
  StepEvents(const StepEvents&) = delete;
  StepEvents& operator=(const StepEvents&) = delete;

  // --- For the training program, on the step thread; steps count from 1 ---
  void begin_step(uint64_t step);
  // Call after reading the step's counters. Transfers started from here to the next begin_step() belong to no
  // step.
  void end_step();

  // --- For any thread ---
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  uint64_t now_ns() const { return clock_.now_ns(); }
  // The open step; 0: between two steps.
  uint32_t step() const { return step_.load(std::memory_order_relaxed); }
  // An event of this kind that begins now and belongs to the open step.
  TraceEvent begun(TraceKind kind) const;
  // Records the event with the current time as its end.
  void record_until_now(TraceEvent event) noexcept {
    event.end_ns = now_ns();
    record(event);
  }
  // Records the event, or counts it as left out.
  void record(const TraceEvent& event) noexcept;

  // The tag that a transfer carries from its request to its end; 0 where the transfer is not recorded.
  uint64_t tag(TransferRole role, TransferReason reason, uint32_t chunk) const;
  static bool is_tag(uint64_t tag) { return tag >> 63 != 0; }
  // The event of the tag's transfer, without its times.
  static TraceEvent event_of(uint64_t tag);
  // The notes that copies to and from the device carry; empty where the copy is not recorded.
  CopyNote to_device(TransferRole role, TransferReason reason, uint32_t chunk, uint64_t id = 0);
  CopyNote from_device(TransferRole role, TransferReason reason, uint32_t chunk);
  // The same for updated parameters whose copy is counted when the step thread asks for it: in the open step,
  // even where the update itself is counted in the next one.
  CopyNote updated_to_device(uint32_t chunk);
  // The notes that operations of ranks carry: a gather of parameters, which is counted like that copy if the
  // update asks for it, and an exchange of gradients.
  CopyNote gathered(TransferReason reason, uint32_t chunk);
  CopyNote exchanged(uint32_t chunk);
  // The file added for a descriptor; without one, path 0 and the role state.
  struct OpenFile {
    int descriptor = -1;
    uint8_t path = 0;
    TransferRole role = TransferRole::state;
  };
  OpenFile file_of(int descriptor) const;

  // --- For the step thread ---
  // Says whether the transfers of the update that begins are counted in this step or in the next one.
  void begin_update(bool in_next_step);
  // The number of an operation, the same for the same name; 0 when there is no room for another name.
  uint32_t number_of(std::string_view operation);

  // --- For the step thread, before the first step ---
  // Replaces the range of recorded steps given by the options.
  void choose_steps(uint64_t first, uint64_t last);
  // Sets the facts of the run that is being constructed and forgets the files of an earlier run.
  void set_facts(TraceFacts facts);
  // The lane of the events of the engine with this name; the same for the same name.
  uint16_t add_engine(std::string_view name);
  // Says that the tier file open as `descriptor` lies on that path and holds that role. Call it before
  // anything is recorded.
  void add_file(int descriptor, uint32_t path, TransferRole role);

  // --- For the thread that takes events out, which is the step thread between steps ---
  // Hands the complete recorded events to `sink`, in the order of their ends as nearly as threads allow, and
  // removes them. Returns how many.
  uint64_t take(FunctionRef<void(const TraceEvent&)> sink);
  const TraceFacts& facts() const { return facts_; }
  const std::vector<std::string>& engines() const { return engines_; }
  std::string_view name(uint32_t number) const;

  // The number of events that had no room so far, and of the number_of() calls whose name had no room.
  uint64_t left_out() const { return left_out_.load(std::memory_order_relaxed); }
  uint64_t nameless() const { return nameless_; }
  uint64_t capacity() const { return capacity_; }
  uint64_t memory_bytes() const;
  uint64_t first_step() const { return first_step_; }
  uint64_t last_step() const { return last_step_; }

 private:
  // A cell of the buffer. `turn` is the number of the event that may be written here, or one more than the
  // number of the event that may be taken out.
  struct Cell {
    std::atomic<uint64_t> turn{0};
    TraceEvent event;
  };
  class Copies final : public CopyObserver {
   public:
    Copies(StepEvents& events, TraceLink link) : events_(events), link_(link) {}
    uint64_t now_ns() const noexcept override { return events_.now_ns(); }
    void copied(const CopyNote& note, uint64_t bytes, uint64_t begun_ns) noexcept override;

   private:
    StepEvents& events_;
    const TraceLink link_;
  };
  uint64_t tag_in(uint64_t step, TransferRole role, TransferReason reason, uint32_t chunk) const;
  CopyNote note_of_updated(Copies& copies, uint32_t chunk);
  CopyNote note_of(Copies& copies, TransferRole role, TransferReason reason, uint32_t chunk, uint64_t id = 0);
  bool is_chosen(uint64_t step) const { return step >= first_step_ && step <= last_step_; }

  const Clock& clock_;
  const uint64_t capacity_;
  uint64_t first_step_ = 0;
  uint64_t last_step_ = 0;
  std::unique_ptr<Cell[]> cells_;
  std::atomic<uint64_t> next_{0};  // the number of the next event
  uint64_t taken_ = 0;             // owned by the thread that takes events out
  std::atomic<uint64_t> left_out_{0};
  std::atomic<bool> recording_{false};
  std::atomic<uint32_t> step_{0};
  std::atomic<uint32_t> update_step_{0};
  uint64_t step_begun_ns_ = 0;
  Copies to_device_{*this, TraceLink::h2d};
  Copies from_device_{*this, TraceLink::d2h};
  Copies gathered_{*this, TraceLink::gather};
  Copies exchanged_{*this, TraceLink::exchange};

  TraceFacts facts_;
  std::vector<std::string> engines_;
  std::vector<OpenFile> files_;
  std::vector<char> name_text_;  // never grows beyond what is reserved
  struct Name {
    uint32_t begin;
    uint32_t bytes;
  };
  std::vector<Name> names_;
  std::unordered_map<std::string_view, uint32_t> number_of_name_;
  uint64_t nameless_ = 0;
};

// --- For hooks: `events` is null where nothing is recorded at all ---

inline bool is_recording(const StepEvents* events) {
  return events != nullptr && events->recording();
}
// The transfer's tag where it is recorded, else 0.
inline uint64_t transfer_tag(const StepEvents* events, TransferRole role, TransferReason reason,
                             ChunkId chunk) {
  return events == nullptr ? 0 : events->tag(role, reason, index_of(chunk));
}
inline CopyNote to_device_note(StepEvents* events, TransferRole role, TransferReason reason, uint32_t chunk,
                               uint64_t id = 0) {
  return events == nullptr ? CopyNote{} : events->to_device(role, reason, chunk, id);
}
inline CopyNote updated_to_device_note(StepEvents* events, uint32_t chunk) {
  return events == nullptr ? CopyNote{} : events->updated_to_device(chunk);
}
inline CopyNote from_device_note(StepEvents* events, TransferRole role, TransferReason reason,
                                 uint32_t chunk) {
  return events == nullptr ? CopyNote{} : events->from_device(role, reason, chunk);
}
inline CopyNote gathered_note(StepEvents* events, TransferReason reason, uint32_t chunk) {
  return events == nullptr ? CopyNote{} : events->gathered(reason, chunk);
}
inline CopyNote exchanged_note(StepEvents* events, uint32_t chunk) {
  return events == nullptr ? CopyNote{} : events->exchanged(chunk);
}

}  // namespace terrace
