#include <terrace/offload/watch/step_view.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace terrace {
namespace {

using Interval = std::pair<uint64_t, uint64_t>;

// Returns the intervals in which the link's transfers overlap the span, cut to it, merged and ascending.
std::vector<Interval> busy_intervals(std::span<const TraceEvent> events, const StepSpan& span, TraceLink link,
                                     std::optional<uint8_t> path, uint64_t& transfers) {
  std::vector<Interval> intervals;
  for (const TraceEvent& event : events) {
    if (event.kind != TraceKind::transfer || event.link != link) continue;
    if (path && event.path != *path) continue;
    const uint64_t begin = std::max(event.begin_ns, span.begin_ns);
    const uint64_t end = std::min(event.end_ns, span.end_ns);
    if (event.begin_ns > span.end_ns || event.end_ns < span.begin_ns) continue;
    intervals.emplace_back(begin, end);
  }
  transfers = intervals.size();
  std::ranges::sort(intervals);
  std::vector<Interval> merged;
  for (const Interval& interval : intervals) {
    if (!merged.empty() && interval.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, interval.second);
    } else {
      merged.push_back(interval);
    }
  }
  return merged;
}

std::vector<TraceEvent> in_time(std::span<const TraceEvent> events, const StepSpan& span,
                                FunctionRef<bool(const TraceEvent&)> wanted) {
  std::vector<TraceEvent> chosen;
  for (const TraceEvent& event : events) {
    if (event.begin_ns <= span.end_ns && wanted(event)) chosen.push_back(event);
  }
  std::ranges::stable_sort(chosen, {}, &TraceEvent::begin_ns);
  return chosen;
}

std::vector<TraceEvent> slots_in_time(std::span<const TraceEvent> events, const StepSpan& span) {
  return in_time(events, span, [](const TraceEvent& event) {
    return event.kind == TraceKind::place || event.kind == TraceKind::leave;
  });
}

// Adds a sample, or replaces the last one if it has the same time. A sample from before the span counts at
// its beginning.
template <typename Sample>
void add_sample(std::vector<Sample>& samples, Sample sample, const StepSpan& span) {
  sample.at_ns = std::max(sample.at_ns, span.begin_ns);
  if (!samples.empty() && samples.back().at_ns == sample.at_ns) {
    samples.back() = sample;
  } else {
    samples.push_back(sample);
  }
}

}  // namespace

std::optional<StepSpan> span_of_step(std::span<const TraceEvent> events, uint32_t step) {
  for (const TraceEvent& event : events) {
    if (event.kind == TraceKind::step && event.step == step) return StepSpan{event.begin_ns, event.end_ns};
  }
  return std::nullopt;
}

std::vector<DeviceSample> device_occupancy(std::span<const TraceEvent> events, const StepSpan& span) {
  std::vector<DeviceSample> samples;
  for (const TraceEvent& event : slots_in_time(events, span))
    add_sample(samples, {event.begin_ns, event.counts[0], event.counts[1], event.counts[2]}, span);
  return samples;
}

std::vector<GaugeSample> gauge_over(std::span<const TraceEvent> events, const StepSpan& span,
                                    TraceGauge gauge) {
  const auto wanted = [gauge](const TraceEvent& event) {
    return event.kind == TraceKind::gauge && event.gauge == gauge;
  };
  std::vector<GaugeSample> samples;
  for (const TraceEvent& event : in_time(events, span, wanted))
    add_sample(samples, {event.begin_ns, event.id}, span);
  return samples;
}

// A chunk that is on the device when the step begins is recorded as placed once more, at that time.
std::vector<Residence> residences(std::span<const TraceEvent> events, const StepSpan& span) {
  std::map<std::pair<uint32_t, TransferRole>, uint64_t> open;
  std::vector<Residence> found;
  const auto close = [&](uint32_t chunk, TransferRole role, uint64_t begin_ns, uint64_t end_ns) {
    const Residence cut{chunk, role, std::max(begin_ns, span.begin_ns), std::min(end_ns, span.end_ns)};
    if (cut.begin_ns < cut.end_ns) found.push_back(cut);
  };
  for (const TraceEvent& event : slots_in_time(events, span)) {
    const auto key = std::make_pair(event.chunk, event.role);
    if (event.kind == TraceKind::place) {
      open.emplace(key, event.begin_ns);
    } else if (const auto placed = open.find(key); placed != open.end()) {
      close(event.chunk, event.role, placed->second, event.begin_ns);
      open.erase(placed);
    }
  }
  for (const auto& [key, begin_ns] : open) close(key.first, key.second, begin_ns, span.end_ns);
  std::ranges::sort(found, {},
                    [](const Residence& r) { return std::make_tuple(r.chunk, r.role, r.begin_ns); });
  return found;
}

LinkUse link_use(std::span<const TraceEvent> events, const StepSpan& span, TraceLink link,
                 std::optional<uint8_t> path) {
  LinkUse use;
  for (const auto& [begin_ns, end_ns] : busy_intervals(events, span, link, path, use.transfers))
    use.busy_ns += end_ns - begin_ns;
  return use;
}

std::vector<double> link_busy_shares(std::span<const TraceEvent> events, const StepSpan& span, TraceLink link,
                                     size_t parts) {
  std::vector<double> shares(parts, 0.0);
  const uint64_t length_ns = span.end_ns - span.begin_ns;
  if (parts == 0 || length_ns == 0) return shares;
  const double part_ns = static_cast<double>(length_ns) / static_cast<double>(parts);
  uint64_t transfers = 0;
  for (const auto& [begin_ns, end_ns] : busy_intervals(events, span, link, std::nullopt, transfers)) {
    const double begin = static_cast<double>(begin_ns - span.begin_ns) / part_ns;
    const double end = static_cast<double>(end_ns - span.begin_ns) / part_ns;
    for (auto part = static_cast<size_t>(begin); part < parts && static_cast<double>(part) < end; ++part) {
      const auto at = static_cast<double>(part);
      shares[part] += std::min(end, at + 1) - std::max(begin, at);
    }
  }
  for (double& share : shares) share = std::clamp(share, 0.0, 1.0);
  return shares;
}

uint64_t link_bytes(std::span<const TraceEvent> events, uint32_t step, TraceLink link,
                    std::optional<TransferRole> role) {
  uint64_t bytes = 0;
  for (const TraceEvent& event : events) {
    if (event.kind != TraceKind::transfer || event.link != link || event.step != step) continue;
    if (event.reason == TransferReason::other || (role && event.role != *role)) continue;
    bytes += event.bytes;
  }
  return bytes;
}

}  // namespace terrace
