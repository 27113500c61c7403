// DeviceLanes: the update on the device of tiles whose records live below it. A lane is a piece of device
// memory that a run of tiles passes through: its records and gradients are copied up, the device computes
// with them, records and new parameters are copied down to where they belong. While one run is computed with
// the next ones are on their way up and the one before is on its way down.
//
//   send()       a run, which takes the first lane that comes free; runs keep their order
//   take_back()  one that is over
//
// A thread of its own goes with the runs from copy to computation to copy; copies are asked for, and the
// update too, in the order of the runs. It must never know where records live or what becomes of a chunk.
// All calls are those of the one thread that runs the update.
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

// Tiles of one chunk. All but `there` is memory of the host, and stays until the run is taken back.
struct LaneRun {
  ChunkId chunk{};
  uint64_t first_tile = 0;
  uint64_t tile_count = 0;
  std::byte* records = nullptr;  // updated in place
  const std::byte* gradients = nullptr;
  const std::byte* old = nullptr;  // parameters before the update, where the records hold only what is below
  std::byte* fresh = nullptr;      // where the new parameters go;
  std::byte* there = nullptr;      // else parameters in device memory: the old ones, and then the new ones
  RecordStream::Block* block = nullptr;  // of whoever sends it
};

class DeviceLanes {
 public:
  // Takes the plan's device memory. `workers` are those of the step thread; all references outlive this.
  DeviceLanes(const TileUpdate& tiles, Device& device, const Workers& workers, StepWatch& watch,
              const MemoryPlan& plan, bool dry);
  ~DeviceLanes();
  DeviceLanes(const DeviceLanes&) = delete;
  DeviceLanes& operator=(const DeviceLanes&) = delete;

  // Whose wait() is to end when a run is over, until the next call; null: nobody's.
  void wake(io::Engine* engine);
  // The most tiles of a run.
  uint64_t run_tiles() const { return lane_tiles_; }
  bool has_room() const;
  void send(const LaneRun& run);
  // The first that is over and was not taken back, in the order of sending. Throws what went wrong with it.
  std::optional<LaneRun> take_back();
  // Everything that was sent was taken back.
  bool empty() const;
  // Until take_back() has something to give; not empty().
  void wait_for_one();
  // Nothing is under way any more, and what was sent is forgotten.
  void finish();

  // Of runs that were sent.
  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t d2h_bytes() const { return d2h_bytes_; }

 private:
  // More than the processor sends between two looks at what came back.
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
  Workers workers_;  // beside those of the step thread
  StepWatch& watch_;
  const uint64_t tile_bytes_;
  const uint64_t gradient_tile_bytes_;
  const uint64_t parameter_tile_bytes_;
  const uint64_t lane_tiles_;
  const uint32_t lane_count_;
  const bool dry_;  // runs are counted, and over at once
  std::unique_ptr<Lane[]> lanes_;
  uint64_t h2d_bytes_ = 0;
  uint64_t d2h_bytes_ = 0;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Sent> sent_runs_ TERRACE_GUARDED_BY(mutex_);
  // How many runs have come how far: taken_ <= over_ <= computed_ <= started_ <= sent_.
  uint64_t sent_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t started_ TERRACE_GUARDED_BY(mutex_) = 0;   // on their way up, in a lane
  uint64_t computed_ TERRACE_GUARDED_BY(mutex_) = 0;  // on their way down
  uint64_t over_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t taken_ TERRACE_GUARDED_BY(mutex_) = 0;
  io::Engine* engine_ TERRACE_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace
