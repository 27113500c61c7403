// DeviceLanes: updates tiles on the device whose records live below it. A lane is a piece of device memory
// that a run of tiles passes through: its records and gradients are copied up, the device computes with them,
// and records and new parameters are copied down to their places. While one run is being computed, the next
// ones are on their way up and the one before is on its way down.
//
//   send()       sends a run, which takes the first lane that comes free; runs keep their order
//   take_back()  takes back a run that is over
//
// A thread of its own takes the runs from copy to computation to copy; copies and updates are requested in
// the order of the runs. DeviceLanes must never know where records live or what happens to a chunk. Only the
// thread that runs the update calls it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/event.h>
#include <terrace/base/mutex.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/update/record_stream.h>
#include <terrace/offload/update/tile_update.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// LaneRun: a run of tiles of one chunk. All memory but `there` is host memory, and stays until the run is
// taken back.
struct LaneRun {
  ChunkId chunk{};
  uint64_t first_tile = 0;
  uint64_t tile_count = 0;
  std::byte* records = nullptr;  // updated in place
  const std::byte* gradients = nullptr;
  const std::byte* old = nullptr;  // compact records: parameters before the update; else null
  std::byte* fresh = nullptr;      // where the new parameters go; null where `there` is set
  // Parameters in device memory, first the old ones, then the new ones; null where `fresh` is set.
  std::byte* there = nullptr;
  RecordStream::Block* block = nullptr;  // for the sender only
};

class DeviceLanes {
 public:
  // The constructor takes the plan's device memory. `workers` are those of the step thread. All references
  // outlive this.
  DeviceLanes(const TileUpdate& tiles, Device& device, const Workers& workers, StepWatch& watch,
              const MemoryPlan& plan, bool dry);
  ~DeviceLanes();
  DeviceLanes(const DeviceLanes&) = delete;
  DeviceLanes& operator=(const DeviceLanes&) = delete;

  // Sets the engine whose wait() ends when a run is over, until the next call; null: none.
  void wake(io::Engine* engine);
  // The most tiles of a run.
  uint64_t run_tiles() const { return lane_tiles_; }
  bool has_room() const;
  void send(const LaneRun& run);
  // Takes back the first finished run, in the order of sending; nothing if none has finished. Throws the
  // run's failure.
  std::optional<LaneRun> take_back();
  // True if every run that was sent was taken back.
  bool empty() const;
  // Waits until take_back() has a run to return. There must be one: not empty().
  void wait_for_one();
  // Waits until no run is under way, and forgets all runs.
  void finish();

  // Bytes copied for the runs that were sent.
  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t d2h_bytes() const { return d2h_bytes_; }

 private:
  // The most runs that were sent and not taken back; more than the sender ever sends before it takes runs
  // back.
  static constexpr size_t kMostSent = 256;
  struct Lane {
    std::byte* records = nullptr;
    std::byte* gradients = nullptr;
    std::byte* parameters = nullptr;
    Event up;
    Event down;
  };
  struct Sent {
    LaneRun run;
    std::exception_ptr failure;
  };
  struct RunBytes {
    uint64_t records, gradients, parameters;
  };

  void work();
  void copy_up(const LaneRun& run, Lane& lane);
  void update(const LaneRun& run, const Lane& lane);
  void copy_down(const LaneRun& run, Lane& lane);
  std::exception_ptr pass_on(const LaneRun& run, Lane& lane);
  void start_waiting() TERRACE_REQUIRES(mutex_);
  void note_over() TERRACE_REQUIRES(mutex_);
  RunBytes bytes_of_run(const LaneRun& run) const;
  Lane& lane_of(uint64_t number) const { return lanes_[number % lane_count_]; }
  Sent& sent_at(uint64_t number) TERRACE_REQUIRES(mutex_) { return sent_runs_[number % kMostSent]; }

  const TileUpdate& tiles_;
  Device& device_;
  Workers workers_;  // loops beside those of the step thread
  StepWatch& watch_;
  const uint64_t tile_bytes_;
  const uint64_t lane_tiles_;
  const uint32_t lane_count_;
  const bool dry_;  // runs are counted, and end at once
  std::unique_ptr<Lane[]> lanes_;
  uint64_t h2d_bytes_ = 0;
  uint64_t d2h_bytes_ = 0;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Sent> sent_runs_ TERRACE_GUARDED_BY(mutex_);
  // The number of runs at each stage. Invariant: taken_ <= over_ <= computed_ <= started_ <= sent_.
  uint64_t sent_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t started_ TERRACE_GUARDED_BY(mutex_) = 0;   // in a lane, on their way up
  uint64_t computed_ TERRACE_GUARDED_BY(mutex_) = 0;  // on their way down
  uint64_t over_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t taken_ TERRACE_GUARDED_BY(mutex_) = 0;
  io::Engine* engine_ TERRACE_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace
