// StepPicture: one recorded step over its time, as a page shows it: what the device held, how busy each link
// was, and where every chunk was, with time cut into equal parts and chunks into groups of neighbours, so
// that its size has a bound. It knows the events of the step and nothing else.
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

// What most of a cell of the map is, for most of its time. Where several are true of a chunk at once the
// later one here counts.
enum class ChunkPresence : uint8_t {
  below,            // its parameters are in the tier below the device and nothing of it moves
  parameters,       // they have a slot of the device
  gradients,        // so has its gradient
  coming,           // parameters on their way to the device, from nvme or from the host
  gradient_leaves,  // copied to the host, or spilled
  state_comes,      // optimizer states are read
  updated,          // optimizer states are updated
  state_leaves,     // optimizer states are written
};
inline constexpr size_t kChunkPresenceCount = 8;

// Between two moments of the step.
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
  uint64_t left_out = 0;  // events that the recorder had no room for: something is missing then
  TraceFacts facts;
  std::vector<StepPhase> phases;

  // By link: the share of each part in which it was busy, 0 to 1, and of the whole step.
  std::array<std::vector<double>, kTraceLinkCount> busy_shares;
  std::array<uint64_t, kTraceLinkCount> busy_ns{};
  std::array<uint64_t, kTraceLinkCount> bytes{};  // that are counted in the step

  // By part: the device when most of its slots were taken, and the most that was in use of the ring.
  std::vector<DeviceSample> device;
  std::vector<uint64_t> ring_slots;
  std::vector<uint64_t> host_bytes;  // of the arenas

  uint32_t chunks_per_row = 1;
  std::vector<std::vector<ChunkPresence>> rows;  // by part
};

// Nothing where `events` do not have the step to its end.
std::optional<StepPicture> make_step_picture(std::span<const TraceEvent> events, const TraceFacts& facts,
                                             uint32_t step);

// Which steps of a run are recorded for a page when nobody asks for others: the first two, and from there on
// each that is twice as far from the beginning. So one of the later half of the steps is always there, and
// the rest cost nothing. `completed`: how many steps there were when the run began; `step` > completed.
bool is_pictured_step(uint64_t completed, uint64_t step);

}  // namespace terrace
