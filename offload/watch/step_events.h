// StepEvents: records what happens in chosen steps, from all threads, for whoever draws a picture of it
// afterwards. It must never decide anything, wait for anything or allocate while it records, and what it has
// no room for it counts.
//
// Memory: one buffer of `memory_bytes`, taken when it is made and in no budget. Recording threads share it
// without locks; one thread takes the events out between steps, which makes room. When it is full events are
// left out, and left_out() says how many.
//
// Which steps: those of `first_step` to `last_step`, from begin_step() of the first to begin_step() of the
// one after the last. A transfer belongs to the step in which it is counted, whenever it ends; those of a
// chosen step are all recorded, and no others. So the bytes of a step's transfers are the step's counters.
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
#include <terrace/base/function_ref.h>
#include <terrace/memory/device/copy_observer.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/watch/trace_event.h>

namespace terrace {

struct StepEventsOptions {
  uint64_t memory_bytes = 32 << 20;  // at least that of one event
  uint64_t first_step = 1;
  uint64_t last_step = (uint64_t{1} << 27) - 1;  // the largest there is
};

// What does not change while the run goes on; said by the Offloader when it is made.
struct TraceFacts {
  uint32_t chunk_count = 0;
  uint32_t device_slot_count = 0;  // for parameters and gradients
  uint64_t device_slot_bytes = 0;
  // Of the device beside these slots: work memory, states and accumulators.
  uint64_t device_other_bytes = 0;
  uint64_t device_budget_bytes = 0;
  uint64_t host_budget_bytes = 0;
  uint32_t ring_slot_count = 0;
  uint64_t ring_slot_bytes = 0;
  uint32_t trainable_chunk_count = 0;  // those that have records
  std::vector<std::string> nvme_paths;
};

class StepEvents {
 public:
  StepEvents(const Clock& clock, const StepEventsOptions& options);
  ~StepEvents();
  StepEvents(const StepEvents&) = delete;
  StepEvents& operator=(const StepEvents&) = delete;

  // --- Of whoever trains, on the step thread; steps count from 1 ---
  void begin_step(uint64_t step);
  // Its counters have been read: what is asked for until the next step is of none.
  void end_step();

  // --- Of any thread ---
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  uint64_t now_ns() const { return clock_.now_ns(); }
  // The step that is open; 0: between two.
  uint32_t step() const { return step_.load(std::memory_order_relaxed); }
  // An event of this kind that begins now and is of the step that is open.
  TraceEvent begun(TraceKind kind) const;
  // The same at its end, or of a moment.
  void record_until_now(TraceEvent event) noexcept {
    event.end_ns = now_ns();
    record(event);
  }
  // Keeps the event, or counts it as left out.
  void record(const TraceEvent& event) noexcept;

  // What goes with a transfer from where it is asked for to where it ends; 0 where it is not to be recorded.
  uint64_t tag(TransferRole role, TransferReason reason, uint32_t chunk) const;
  static bool is_tag(uint64_t tag) { return tag >> 63 != 0; }
  // An event of that transfer, without its times.
  static TraceEvent event_of(uint64_t tag);
  // The same for copies to the device and from it.
  CopyNote to_device(TransferRole role, TransferReason reason, uint32_t chunk, uint64_t id = 0);
  CopyNote from_device(TransferRole role, TransferReason reason, uint32_t chunk);
  // What was added, else what is on path 0.
  struct OpenFile {
    int descriptor = -1;
    uint8_t path = 0;
    TransferRole role = TransferRole::state;
  };
  OpenFile file_of(int descriptor) const;

  // --- Of the step thread ---
  // The transfers of the update that begins are counted in this step, or in the next one.
  void begin_update(bool in_next_step);
  // A number for an operation, the same for the same; 0 when there is no room for another name.
  uint32_t number_of(std::string_view operation);

  // --- Before the first step, and of the step thread ---
  // Which steps are recorded from now on, instead of those of the options.
  void choose_steps(uint64_t first, uint64_t last);
  // Of a run that is being made: the files of one before are not its.
  void set_facts(TraceFacts facts);
  // The lane of an engine's events; the same for the same name.
  uint16_t add_engine(std::string_view name);
  // The files of the tier: what is open as `descriptor` lies on that path and holds that role. Before
  // anything is recorded.
  void add_file(int descriptor, uint32_t path, TransferRole role);

  // --- Of the thread that takes the events out, which is the step thread's between steps ---
  // What was recorded and is complete, in the order in which it ended, as nearly as threads allow. Returns
  // how many.
  uint64_t take(FunctionRef<void(const TraceEvent&)> sink);
  const TraceFacts& facts() const { return facts_; }
  const std::vector<std::string>& engines() const { return engines_; }
  std::string_view name(uint32_t number) const;

  // Events that there was no room for so far, and operations whose name there was no room for.
  uint64_t left_out() const { return left_out_.load(std::memory_order_relaxed); }
  uint64_t nameless() const { return nameless_; }
  uint64_t capacity() const { return capacity_; }
  uint64_t memory_bytes() const;
  uint64_t first_step() const { return first_step_; }
  uint64_t last_step() const { return last_step_; }

 private:
  // A place in the buffer; `turn` says whose turn it is: that of the recording thread whose event has this
  // number, or, when it is one more, that of the thread that takes it out.
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
  bool is_chosen(uint64_t step) const { return step >= first_step_ && step <= last_step_; }

  const Clock& clock_;
  const uint64_t capacity_;
  uint64_t first_step_ = 0;
  uint64_t last_step_ = 0;
  std::unique_ptr<Cell[]> cells_;
  std::atomic<uint64_t> next_{0};  // the number of the next event
  uint64_t taken_ = 0;             // of the thread that takes them out
  std::atomic<uint64_t> left_out_{0};
  std::atomic<bool> recording_{false};
  std::atomic<uint32_t> step_{0};
  std::atomic<uint32_t> update_step_{0};
  uint64_t step_begun_ns_ = 0;
  Copies to_device_{*this, TraceLink::h2d};
  Copies from_device_{*this, TraceLink::d2h};

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
// Its tag where it is recorded, else 0.
inline uint64_t transfer_tag(const StepEvents* events, TransferRole role, TransferReason reason,
                             ChunkId chunk) {
  return events == nullptr ? 0 : events->tag(role, reason, index_of(chunk));
}
inline CopyNote to_device_note(StepEvents* events, TransferRole role, TransferReason reason, uint32_t chunk,
                               uint64_t id = 0) {
  return events == nullptr ? CopyNote{} : events->to_device(role, reason, chunk, id);
}
inline CopyNote from_device_note(StepEvents* events, TransferRole role, TransferReason reason,
                                 uint32_t chunk) {
  return events == nullptr ? CopyNote{} : events->from_device(role, reason, chunk);
}

}  // namespace terrace
