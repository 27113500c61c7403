// What the events of a step come to: its tiers, its chunks and its links over its time. Functions of the
// events alone; those of several steps may be given together, in any order.
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
// Nothing where the step was not recorded to its end.
std::optional<StepSpan> span_of_step(std::span<const TraceEvent> events, uint32_t step);

// From `at_ns` until the next sample. The first one is at the beginning of the span.
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

// A chunk holds a device slot; cut to the span. By chunk, role and beginning.
struct Residence {
  uint32_t chunk = 0;
  TransferRole role = TransferRole::param;  // or grad
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};
std::vector<Residence> residences(std::span<const TraceEvent> events, const StepSpan& span);

struct LinkUse {
  uint64_t transfers = 0;  // with any part of them in the span,
  uint64_t busy_ns = 0;    // and the time in which at least one was under way
};
// Of an nvme link all paths together, or one of them.
LinkUse link_use(std::span<const TraceEvent> events, const StepSpan& span, TraceLink link,
                 std::optional<uint8_t> path = std::nullopt);
// The same cut into equal parts of the span: the share of each in which the link was busy, 0 to 1.
std::vector<double> link_busy_shares(std::span<const TraceEvent> events, const StepSpan& span, TraceLink link,
                                     size_t parts);
// The bytes of the transfers that are counted in the step, of one role or all; what is `other` is in no
// counter and not here.
uint64_t link_bytes(std::span<const TraceEvent> events, uint32_t step, TraceLink link,
                    std::optional<TransferRole> role = std::nullopt);

}  // namespace terrace
