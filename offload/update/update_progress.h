// UpdateProgress: the progress of every chunk's update, for the threads that wait for it. It decides nothing
// and moves nothing.
//
// The step thread begins a chunk; the thread that runs the update completes it, once. In between, every user
// of the chunk's new parameters waits for updated(), or is queued behind it.
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
  // The thread that runs the update calls this for every chunk just before updated() is done.
  using OnCompletion = std::function<void(ChunkId, const std::exception_ptr& failure)>;
  void set_on_completion(OnCompletion on_completion) { on_completion_ = std::move(on_completion); }

  // --- For the step thread ---
  // Begins a new update without chunks. The update before must be over.
  void begin_update() { order_.clear(); }
  // Begins the update of a chunk, behind those begun before.
  void begin(ChunkId chunk);
  // The event of the chunk's update. It is done when the new parameters are complete, or, with a failure,
  // when they never will be.
  const Event& updated(ChunkId chunk) const { return updated_[index_of(chunk)]; }
  void note_needed(ChunkId chunk);
  // Ends the update; last_times() then has its times.
  void end_update();
  std::span<const ChunkTimes> last_times() const { return last_times_; }

  // --- For the thread that runs the update ---
  void note_read(ChunkId chunk) { times_[index_of(chunk)].read_ns = clock_.now_ns(); }
  void complete(ChunkId chunk, std::exception_ptr failure = nullptr);

 private:
  const SteadyClock clock_;
  OnCompletion on_completion_;
  std::unique_ptr<Event[]> updated_;  // by ChunkId
  std::vector<ChunkTimes> times_;     // by ChunkId
  std::vector<ChunkId> order_;        // the chunks of this update, in order
  std::vector<ChunkTimes> last_times_;
};

}  // namespace terrace
