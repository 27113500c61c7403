#include <terrace/base/scheduling.h>

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace terrace {
namespace {

// sched_setattr(2), which the C library of Debian 12 does not declare.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;  // of this policy: the slice
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};

constexpr uint64_t kSliceNs = 100'000;  // the shortest that there is

}  // namespace

void ask_for_short_slices() noexcept {
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  SchedulingAttributes attributes;
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.runtime_ns = kSliceNs;
  // A wish: without it the thread runs a little later.
  static_cast<void>(syscall(SYS_sched_setattr, 0, &attributes, 0));
}

}  // namespace terrace
