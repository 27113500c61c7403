// StepWatch: the current wait of the step thread, for another thread to read. It never waits, decides or
// measures anything itself. While the step thread does not block, it costs only the setting of a name.
//
// The thread that runs updates and the one that makes commits have waits of their own here: where the step
// thread waits for an update or a commit, what that waits for is reported too.
//
// StepWatch charges every wait of the step thread to its TimeAccount: a wait to its cause, and a wait for an
// update or a commit to the cause of that thread's own wait, if there is one. It also records the waits of
// steps and updates where steps are recorded (StepEvents), and hands the recorder to others.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <terrace/base/event.h>
#include <terrace/base/mutex.h>
#include <terrace/offload/watch/activity_name.h>
#include <terrace/offload/watch/step_events.h>
#include <terrace/offload/watch/time_account.h>
#include <terrace/offload/watch/wait_subject.h>

namespace terrace {

class StepWatch {
 public:
  // Both references outlive the watch. A null `account` charges nothing; null `events` record nothing.
  explicit StepWatch(TimeAccount* account = nullptr, StepEvents* events = nullptr)
      : account_(account), events_(events) {}
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // --- For the step thread ---
  // Sets the step thread's activity: an operation's key, or "the update".
  void set_activity(std::string_view activity) { activity_.set(activity); }
  // Mark the begin and the end of arithmetic within another activity.
  void begin_computing();
  void end_computing();
  // The time of waits for other ranks that have ended, by what they were for.
  uint64_t rank_wait_ns(RankWait of) const { return rank_wait_ns_[static_cast<size_t>(of)]; }
  // Mark the begin and the end of a wait of the calling thread; waits do not nest.
  void begin(const WaitSubject& subject);
  void end();

  // --- For the thread that runs updates, and for the one that makes commits ---
  // Makes the calling thread the one whose waits are those of updates, of commits.
  void set_update_thread();
  void set_commit_thread();

  // --- For any thread ---
  // The recorder of steps; null where no step is recorded.
  StepEvents* events() const { return events_; }
  // The number of the step thread's wait in progress, or nothing. Every wait has another number.
  std::optional<uint64_t> current() const;
  // The last activity that was set; a long one is cut.
  std::string activity() const { return activity_.get(); }
  // Whether that wait is in progress and one for other ranks.
  bool is_for_ranks(uint64_t wait) const;
  // The wait in words: "mb0/h3/forward waits for parameters of chunk 17 (nvme -> host -> device): reading
  // 768.00 KiB at offset 12582912 of /nvme/terrace-tier/params.tier"; nothing when that wait is over.
  std::optional<std::string> describe(uint64_t wait) const;

 private:
  ActivityName activity_;
  struct Wait {
    uint64_t count = 0;
    bool in_progress = false;
    WaitSubject subject;
    std::optional<TraceEvent> recorded;
  };
  void begin_recording(Wait& wait, bool of_update);
  void end_recording(Wait& wait);
  // The wait of the calling thread.
  Wait& own_wait() TERRACE_REQUIRES(mutex_);
  // The wait of the thread that this one waits for; null where that does not wait. An update may wait for a
  // commit.
  const Wait* wait_behind(const Wait& wait) const TERRACE_REQUIRES(mutex_);
  // The cause to which the step thread's wait is charged now.
  TimeCause cause_of_step() const TERRACE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  // The step thread uses the account; while it waits, the thread it waits for may use the account under the
  // mutex.
  TimeAccount* const account_;
  StepEvents* const events_;
  // The step thread's: ended waits by RankWait, and what was charged to ranks when the wait in progress
  // began.
  std::array<uint64_t, kRankWaitCount> rank_wait_ns_{};
  uint64_t ranks_charged_ns_ = 0;
  Wait step_ TERRACE_GUARDED_BY(mutex_);
  Wait update_ TERRACE_GUARDED_BY(mutex_);
  Wait commit_ TERRACE_GUARDED_BY(mutex_);
  std::thread::id update_thread_ TERRACE_GUARDED_BY(mutex_);
  std::thread::id commit_thread_ TERRACE_GUARDED_BY(mutex_);
};

// WatchedWait: a wait that lasts as long as this object.
class WatchedWait {
 public:
  WatchedWait(StepWatch& watch, const WaitSubject& subject) : watch_(watch) { watch.begin(subject); }
  ~WatchedWait() { watch_.end(); }
  WatchedWait(const WatchedWait&) = delete;
  WatchedWait& operator=(const WatchedWait&) = delete;

 private:
  StepWatch& watch_;
};

// ComputingScope: arithmetic that lasts as long as this object.
class ComputingScope {
 public:
  explicit ComputingScope(StepWatch& watch) : watch_(watch) { watch.begin_computing(); }
  ~ComputingScope() { watch_.end_computing(); }
  ComputingScope(const ComputingScope&) = delete;
  ComputingScope& operator=(const ComputingScope&) = delete;

 private:
  StepWatch& watch_;
};

// Calls Event::wait_done(), watched where it blocks.
inline void wait_done_watched(const Event& event, StepWatch& watch, const WaitSubject& subject) noexcept {
  if (event.done()) return;
  const WatchedWait wait(watch, subject);
  event.wait_done();
}
// Calls Event::wait(), watched where it blocks.
inline void wait_watched(const Event& event, StepWatch& watch, const WaitSubject& subject) {
  wait_done_watched(event, watch, subject);
  event.wait();
}
// Calls Engine::wait(1), watched.
inline void wait_watched(io::Engine& engine, StepWatch& watch, const WaitSubject& subject) {
  const WatchedWait wait(watch, subject);
  engine.wait(1);
}

}  // namespace terrace
