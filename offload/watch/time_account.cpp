#include <terrace/offload/watch/time_account.h>

#include <numeric>
#include <string>

#include <terrace/base/assert.h>

namespace terrace {

namespace {

struct CauseText {
  std::string_view name;
  std::string_view key;
};
// The entries are in the order of TimeCause.
constexpr std::array<CauseText, kTimeCauseCount> kCauseTexts = {
    {{"compute", "compute"},
     {"wait for device copies", "device_copy_wait"},
     {"wait for reads", "read_wait"},
     {"wait for writes", "write_wait"},
     {"update", "update"},
     {"commit", "commit"},
     {"wait for ranks", "rank_wait"},
     {"overhead", "overhead"}}};

}  // namespace

std::string_view name_of(TimeCause cause) {
  return kCauseTexts[static_cast<size_t>(cause)].name;
}

std::string_view key_of(TimeCause cause) {
  return kCauseTexts[static_cast<size_t>(cause)].key;
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
