// Views of a step's events: its tiers, its chunks and its links over time. These are functions of the events
// alone; events of several steps may be given together, in any order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <terrace/offload/watch/step_events.h>
#include <terrace/offload/watch/trace_event.h>

namespace terrace {

struct StepSpan {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};
// The span of a step; nothing if the step was not recorded to its end.
std::optional<StepSpan> span_of_step(std::span<const TraceEvent> events, uint32_t step);

// A sample holds from `at_ns` until the next sample. The first sample is at the beginning of the span.
struct DeviceSample {
  uint64_t at_ns = 0;
  uint32_t param_slots = 0;
  uint32_t grad_slots = 0;
  uint32_t leaving_slots = 0;  // gradients on their way out
};
std::vector<DeviceSample> device_occupancy(std::span<const TraceEvent> events, const StepSpan& span);

struct GaugeSample {
  uint64_t at_ns = 0;
  uint64_t value = 0;
};
std::vector<GaugeSample> gauge_over(std::span<const TraceEvent> events, const StepSpan& span,
                                    TraceGauge gauge);

// The time for which a chunk holds a device slot, cut to the span.
struct Residence {
  uint32_t chunk = 0;
  TransferRole role = TransferRole::param;  // param or grad
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};
std::vector<Residence> residences(std::span<const TraceEvent> events, const StepSpan& span);

struct LinkUse {
  uint64_t transfers = 0;  // transfers with any part in the span
  uint64_t busy_ns = 0;    // with at least one transfer under way
};
// The use of a link in the span; of an nvme link all paths together, or the given one.
LinkUse link_use(std::span<const TraceEvent> events, const StepSpan& span, TraceLink link,
                 std::optional<uint8_t> path = std::nullopt);
// The busy share of the link, 0 to 1, in each of `parts` equal parts of the span.
std::vector<double> link_busy_shares(std::span<const TraceEvent> events, const StepSpan& span, TraceLink link,
                                     size_t parts);
// The bytes of the transfers that are counted in the step, of one role or of all. Transfers with the reason
// `other` are in no counter and not included.
uint64_t link_bytes(std::span<const TraceEvent> events, uint32_t step, TraceLink link,
                    std::optional<TransferRole> role = std::nullopt);

}  // namespace terrace
