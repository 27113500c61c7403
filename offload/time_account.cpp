#include <terrace/offload/time_account.h>

#include <numeric>
#include <string>

#include <terrace/base/assert.h>

namespace terrace {

std::string_view name_of(TimeCause cause) {
  switch (cause) {
    case TimeCause::compute:
      return "compute";
    case TimeCause::device_copy:
      return "wait for device copies";
    case TimeCause::read:
      return "wait for reads";
    case TimeCause::write:
      return "wait for writes";
    case TimeCause::update:
      return "update";
    case TimeCause::commit:
      return "commit";
    case TimeCause::overhead:
      return "overhead";
  }
  return "";
}

std::string_view key_of(TimeCause cause) {
  switch (cause) {
    case TimeCause::compute:
      return "compute";
    case TimeCause::device_copy:
      return "device_copy_wait";
    case TimeCause::read:
      return "read_wait";
    case TimeCause::write:
      return "write_wait";
    case TimeCause::update:
      return "update";
    case TimeCause::commit:
      return "commit";
    case TimeCause::overhead:
      return "overhead";
  }
  return "";
}

uint64_t TimeParts::total_ns() const {
  return std::accumulate(ns.begin(), ns.end(), uint64_t{0});
}

TimeParts operator-(const TimeParts& later, const TimeParts& earlier) {
  TimeParts difference = later;
  for (size_t c = 0; c < kTimeCauseCount; ++c) difference.ns[c] -= earlier.ns[c];
  return difference;
}

TimeParts operator+(const TimeParts& one, const TimeParts& other) {
  TimeParts sum = one;
  for (size_t c = 0; c < kTimeCauseCount; ++c) sum.ns[c] += other.ns[c];
  return sum;
}

void TimeAccount::charge() {
  const uint64_t now_ns = clock_.now_ns();
  parts_[causes_[depth_]] += now_ns - charged_ns_;
  charged_ns_ = now_ns;
}

void TimeAccount::enter(TimeCause cause) {
  TERRACE_ASSERT(depth_ + 1 < kDepth, "causes of time nest " + std::to_string(kDepth) + " deep at most");
  charge();
  causes_[++depth_] = cause;
}

void TimeAccount::leave() {
  TERRACE_ASSERT(depth_ > 0, "a cause of time ends that was not entered");
  charge();
  --depth_;
}

void TimeAccount::change(TimeCause cause) {
  TERRACE_ASSERT(depth_ > 0, "a cause of time changes that was not entered");
  charge();
  causes_[depth_] = cause;
}

TimeParts TimeAccount::parts() {
  charge();
  TERRACE_ASSERT(parts_.total_ns() == charged_ns_ - begin_ns_, "the parts of the time add up");
  return parts_;
}

}  // namespace terrace
