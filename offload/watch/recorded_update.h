// RecordedUpdate: records the update of a run of tiles as an event, which lasts as long as this object.
#pragma once

#include <optional>

#include <terrace/base/workers.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/watch/step_events.h>

namespace terrace {

class RecordedUpdate {
 public:
  // Records on lane 0, for a thread outside of any worker loop. `events` may be null.
  RecordedUpdate(StepEvents* events, ChunkId chunk, uint64_t record_bytes) : events_(events) {
    if (is_recording(events)) begin(0, chunk, record_bytes);
  }
  // Records on the lane of the calling thread, in a loop of `workers`.
  RecordedUpdate(StepEvents* events, const Workers& workers, ChunkId chunk, uint64_t record_bytes)
      : events_(events) {
    if (is_recording(events)) begin(workers.current_thread_index(), chunk, record_bytes);
  }
  // Records on the given lane.
  RecordedUpdate(StepEvents* events, uint16_t lane, ChunkId chunk, uint64_t record_bytes) : events_(events) {
    if (is_recording(events)) begin(lane, chunk, record_bytes);
  }
  ~RecordedUpdate() {
    if (event_) events_->record_until_now(*event_);
  }
  RecordedUpdate(const RecordedUpdate&) = delete;
  RecordedUpdate& operator=(const RecordedUpdate&) = delete;

 private:
  void begin(size_t lane, ChunkId chunk, uint64_t record_bytes) {
    event_ = events_->begun(TraceKind::update);
    event_->lane = static_cast<uint16_t>(lane);
    event_->chunk = index_of(chunk);
    event_->bytes = record_bytes;
  }

  StepEvents* const events_;
  std::optional<TraceEvent> event_;
};

}  // namespace terrace
