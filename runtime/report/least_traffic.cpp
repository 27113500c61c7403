#include <terrace/runtime/report/least_traffic.h>

#include <terrace/runtime/report/link_table.h>

namespace terrace {

void LeastTraffic::add(UpdateMode mode) {
  ++steps_;
  if (mode == UpdateMode::next_forward && last_mode_ == mode) ++following_;
  last_mode_ = mode;
}

TrafficBound LeastTraffic::per_step(const Offloader& offloader) const {
  if (steps_ == 0) return offloader.traffic_bound();
  const TrafficBound first = offloader.traffic_bound(StepStart::at_rest);
  if (following_ == 0) return first;
  const TrafficBound following = offloader.traffic_bound(StepStart::behind_update);
  TrafficBound mean;
  for (const LinkEntry& link : kLinks) {
    if (link.bound == nullptr) continue;
    const uint64_t bytes = following_ * (following.*link.bound) + (steps_ - following_) * (first.*link.bound);
    mean.*link.bound = bytes / steps_;
  }
  return mean;
}

}  // namespace terrace
