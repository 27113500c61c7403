// StepWatch: what the step thread waits for at the moment, for another thread to read. It never waits,
// decides or measures anything itself, and while the step thread does not block it costs nothing but a name.
//
// A thread that runs updates has a place of its own in it: where the step thread waits for an update, what
// that waits for is said too.
//
// As it sees every wait, it charges them to the step thread's TimeAccount: the time of a wait to its cause,
// and that of a wait for an update to what the update waits for meanwhile, if it does. For the same reason it
// has them recorded where steps are (StepEvents), and is where others find the recorder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <terrace/aio/engine.h>
#include <terrace/base/event.h>
#include <terrace/base/mutex.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/watch/step_events.h>
#include <terrace/offload/watch/time_account.h>

namespace terrace {

// Everything here is the waiting thread's and stays as it is while the wait lasts.
struct WaitSubject {
  std::string_view what;                  // "parameters"
  std::string_view link;                  // "nvme -> host -> device"
  TimeCause cause = TimeCause::overhead;  // update: what the thread of the updates does
  std::optional<ChunkId> chunk;
  const io::Request* request = nullptr;  // the oldest that is not over, of `file`
  std::string_view file;                 // without a request: what is waited for, in words
};

class StepWatch {
 public:
  // Both outlive the watch; null: nothing is charged, nothing is recorded.
  explicit StepWatch(TimeAccount* account = nullptr, StepEvents* events = nullptr)
      : account_(account), events_(events) {}
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // --- Of the step thread ---
  // What it is at: an operation's key, "the update". The text stays until the next one is set.
  void set_activity(std::string_view activity) { activity_ = activity; }
  // Arithmetic begins or ends, in the midst of something else.
  void begin_computing();
  void end_computing();
  // A wait of the calling thread begins or ends; waits do not nest.
  void begin(const WaitSubject& subject);
  void end();

  // --- Of the thread that runs updates ---
  // From now on its waits are those of updates.
  void set_update_thread();

  // --- Of any thread ---
  // Null where no step is recorded at all.
  StepEvents* events() const { return events_; }
  // The number of the wait in progress, or nothing. Another wait is another number.
  std::optional<uint64_t> current() const;
  // "mb0/h3/forward waits for parameters of chunk 17 (nvme -> host -> device): reading 768.00 KiB at offset
  // 12582912 of /nvme/terrace-tier/params.tier"; nothing when that wait is over.
  std::optional<std::string> describe(uint64_t wait) const;

 private:
  std::string_view activity_;  // read by others between begin() and end() only, when it does not change
  struct Wait {
    uint64_t count = 0;
    bool in_progress = false;
    WaitSubject subject;
    std::optional<TraceEvent> recorded;
  };
  void begin_recording(Wait& wait, bool of_update);
  void end_recording(Wait& wait);
  bool on_update_thread() const TERRACE_REQUIRES(mutex_);
  // To what the step thread's wait is charged now.
  TimeCause cause_of_step() const TERRACE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  // Of the step thread; under the mutex, while that waits, also of the thread that it waits for.
  TimeAccount* const account_;
  StepEvents* const events_;
  Wait step_ TERRACE_GUARDED_BY(mutex_);
  Wait update_ TERRACE_GUARDED_BY(mutex_);
  std::thread::id update_thread_ TERRACE_GUARDED_BY(mutex_);
};

// A wait for the life of this object.
class WatchedWait {
 public:
  WatchedWait(StepWatch& watch, const WaitSubject& subject) : watch_(watch) { watch.begin(subject); }
  ~WatchedWait() { watch_.end(); }
  WatchedWait(const WatchedWait&) = delete;
  WatchedWait& operator=(const WatchedWait&) = delete;

 private:
  StepWatch& watch_;
};

// Arithmetic for the life of this object.
class ComputingScope {
 public:
  explicit ComputingScope(StepWatch& watch) : watch_(watch) { watch.begin_computing(); }
  ~ComputingScope() { watch_.end_computing(); }
  ComputingScope(const ComputingScope&) = delete;
  ComputingScope& operator=(const ComputingScope&) = delete;

 private:
  StepWatch& watch_;
};

// Event::wait_done(), watched where it blocks.
inline void wait_done_watched(const Event& event, StepWatch& watch, const WaitSubject& subject) noexcept {
  if (event.done()) return;
  const WatchedWait wait(watch, subject);
  event.wait_done();
}
// Event::wait(), the same.
inline void wait_watched(const Event& event, StepWatch& watch, const WaitSubject& subject) {
  wait_done_watched(event, watch, subject);
  event.wait();
}
// Engine::wait(1), the same.
inline void wait_watched(io::Engine& engine, StepWatch& watch, const WaitSubject& subject) {
  const WatchedWait wait(watch, subject);
  engine.wait(1);
}

}  // namespace terrace
