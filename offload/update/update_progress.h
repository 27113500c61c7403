// UpdateProgress: how far the update of every chunk is, for everyone who waits for one. It decides nothing
// and moves nothing.
//
// The step thread begins a chunk; whichever thread runs the update completes it, once. Between the two
// whatever needs the chunk's new parameters waits for, or is queued behind, updated().
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/event.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/plan/update_mode.h>

namespace terrace {

class UpdateProgress {
 public:
  explicit UpdateProgress(uint32_t chunk_count);
  // Told of every chunk just before updated() is done, by the thread that runs the update.
  using OnCompletion = std::function<void(ChunkId, const std::exception_ptr& failure)>;
  void set_on_completion(OnCompletion on_completion) { on_completion_ = std::move(on_completion); }

  // --- Of the step thread ---
  // A new update, of no chunk yet. The one before is over.
  void begin_update() { order_.clear(); }
  // The chunk is updated next, behind those begun before.
  void begin(ChunkId chunk);
  // Done when the chunk's new parameters are complete, or never will be: then it has a failure.
  const Event& updated(ChunkId chunk) const { return updated_[index_of(chunk)]; }
  void note_needed(ChunkId chunk);
  // The update is over: what it took is told by last_times().
  void end_update();
  std::span<const ChunkTimes> last_times() const { return last_times_; }

  // --- Of the thread that runs the update ---
  void note_read(ChunkId chunk) { times_[index_of(chunk)].read_ns = clock_.now_ns(); }
  void complete(ChunkId chunk, std::exception_ptr failure = nullptr);

 private:
  const SteadyClock clock_;
  OnCompletion on_completion_;
  std::unique_ptr<Event[]> updated_;  // by ChunkId
  std::vector<ChunkTimes> times_;     // by ChunkId
  std::vector<ChunkId> order_;        // of this update
  std::vector<ChunkTimes> last_times_;
};

}  // namespace terrace
