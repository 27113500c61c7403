#include <terrace/runtime/observe/log/least_traffic.h>

#include <algorithm>

#include <terrace/offload/watch/counter_table.h>

namespace terrace {
namespace {

// Of what comes to the device as parameters, and is not moved where it is there already.
bool is_fetch(const CounterEntry& link) {
  return link.bound == &TrafficBound::h2d_bytes || link.bound == &TrafficBound::param_read_bytes ||
         link.bound == &TrafficBound::direct_read_bytes;
}

}  // namespace

void LeastTraffic::add(UpdateMode mode) {
  ++steps_;
  if (mode == UpdateMode::next_forward && last_mode_ == mode) ++following_;
  if (evaluated_) ++behind_evaluation_;
  evaluated_ = false;
  last_mode_ = mode;
}

TrafficBound LeastTraffic::per_step(const Offloader& offloader) const {
  if (steps_ == 0) return offloader.report().traffic_bound();
  const TrafficBound first = offloader.report().traffic_bound(StepStart::at_rest);
  const TrafficBound following =
      following_ > 0 ? offloader.report().traffic_bound(StepStart::behind_update) : first;
  const uint64_t on_device = uint64_t{offloader.plan().device_slots} * offloader.plan().slot_bytes;
  TrafficBound mean;
  for (const CounterEntry& link : kLinks) {
    if (link.bound == nullptr) continue;
    uint64_t bytes = following_ * (following.*link.bound) + (steps_ - following_) * (first.*link.bound);
    uint64_t moved_elsewhere = 0;
    if (is_fetch(link)) {
      moved_elsewhere = behind_evaluation_ * std::min(on_device, first.*link.bound);
    } else if (offloader.update_pending()) {  // which is in none of the steps yet
      moved_elsewhere = first.*link.bound;
    }
    bytes -= std::min(bytes, moved_elsewhere);
    mean.*link.bound = bytes / steps_;
  }
  return mean;
}

}  // namespace terrace
