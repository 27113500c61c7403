// StepPicture: one recorded step over its time, as a page shows it: the contents of the device, the busy time
// of each link, and the place of every chunk. Time is cut into equal parts and chunks into groups of
// neighbours, so that its size has a bound. It knows the events of the step and nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/offload/watch/step_events.h>
#include <terrace/offload/watch/step_view.h>
#include <terrace/offload/watch/trace_event.h>

namespace terrace {

// The state of most of a cell of the map, for most of its time. If several states hold for a chunk at once,
// the latest one in this list counts.
enum class ChunkPresence : uint8_t {
  below,            // the parameters are in the tier below the device and nothing moves
  parameters,       // the parameters have a slot of the device
  gradients,        // the gradient has a slot of the device
  coming,           // the parameters move to the device, from nvme or from the host
  gradient_leaves,  // the gradient is copied to the host, or spilled
  state_comes,      // optimizer states are read
  updated,          // optimizer states are updated
  state_leaves,     // optimizer states are written
};
inline constexpr size_t kChunkPresenceCount = 8;

// The time between two moments of the step.
struct StepPhase {
  std::string name;  // "forward", "backward", "update"
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};

struct StepPicture {
  static constexpr size_t kParts = 240;
  static constexpr size_t kMostRows = 200;
  static constexpr size_t kMostPhases = 64;

  uint32_t step = 0;
  uint64_t length_ns = 0;
  uint64_t left_out = 0;  // events without room in the recorder: the picture then lacks something
  TraceFacts facts;
  std::vector<StepPhase> phases;

  // By link: the busy share of each part, 0 to 1; then the busy time of the whole step.
  std::array<std::vector<double>, kTraceLinkCount> busy_shares;
  std::array<uint64_t, kTraceLinkCount> busy_ns{};
  std::array<uint64_t, kTraceLinkCount> bytes{};  // counted in the step

  // By part: the device when most of its slots were taken; then the most slots in use of the ring.
  std::vector<DeviceSample> device;
  std::vector<uint64_t> ring_slots;
  std::vector<uint64_t> host_bytes;  // by part: bytes of the arenas

  uint32_t chunks_per_row = 1;
  std::vector<std::vector<ChunkPresence>> rows;  // by part
};

// Returns nothing if `events` do not reach the end of the step.
std::optional<StepPicture> make_step_picture(std::span<const TraceEvent> events, const TraceFacts& facts,
                                             uint32_t step);

// True if a step is recorded for a page by default: the first two steps, and then each that is twice as far
// from the beginning. So one step of the later half is always there, and the other steps cost nothing.
// `completed` is the number of steps when the run began; `step` > completed.
bool is_pictured_step(uint64_t completed, uint64_t step);

}  // namespace terrace
