// OffloadReport: what an Offloader tells of itself. No call changes the training. The offloader's thread
// calls it, but for watch(), which any thread may read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/memory/space/schedule.h>
#include <terrace/memory/space/tensor_state.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/watch/counters.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/offload/watch/time_account.h>

namespace terrace {

struct OffloaderRooms;

// The traffic of one nvme path since the Offloader was constructed, its construction included.
struct NvmePathUse {
  std::string path;
  uint64_t bytes = 0;           // read and written
  uint64_t busy_ns = 0;         // with at least one transfer in flight
  double bytes_per_second = 0;  // the rate by which new blocks are placed now
};

class OffloadReport {
 public:
  // The Offloader constructs it. `rooms` outlive this.
  explicit OffloadReport(OffloaderRooms& rooms) : rooms_(rooms) {}

  OffloadCounters counters() const;
  // The least bytes that a step can move with these budgets. Without `start` the bound is for a step that
  // follows another one in the current update mode.
  TrafficBound traffic_bound(StepStart start) const;
  TrafficBound traffic_bound() const;
  // The schedule of a training step: the announced one, or that of the last step as it went.
  const Schedule& schedule() const;
  // The times of the chunks of the last finished update, in its order; valid until the next update finishes.
  std::span<const ChunkTimes> last_update_times() const;
  uint64_t tier_file_bytes() const;             // on all nvme paths together
  std::vector<NvmePathUse> nvme_paths() const;  // none when nothing is on nvme
  // The current wait of the step thread, for another thread to read (runtime/observe/watchdog.h).
  const StepWatch& watch() const;
  // The state and the last transitions of every tensor, for messages.
  const TensorStates& states() const;

 private:
  OffloaderRooms& rooms_;
};

}  // namespace terrace
