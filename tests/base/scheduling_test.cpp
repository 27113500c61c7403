#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <thread>

#include <terrace/base/scheduling.h>

namespace terrace::scheduling_test {
namespace {

// struct sched_attr: size and policy, flags, nice and priority, runtime, deadline, period.
using Attributes = std::array<uint64_t, 6>;

Attributes attributes_of_this_thread() {
  Attributes attributes{};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, attributes.data(), sizeof(attributes), 0), 0);
  return attributes;
}

bool has_slices() {
  utsname system{};
  int major = 0, minor = 0;
  return uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
         (major > 6 || (major == 6 && minor >= 12));
}

TEST(Scheduling, AsksForShortSlicesAndChangesNothingElse) {
  std::thread([] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 3);  // of this thread alone
    const Attributes before = attributes_of_this_thread();
    ask_for_short_slices();
    const Attributes after = attributes_of_this_thread();
    EXPECT_EQ(after[0], before[0]);
    EXPECT_EQ(after[2], before[2]);
    EXPECT_EQ(static_cast<int32_t>(after[2]), 3);
    if (has_slices()) {
      EXPECT_EQ(after[3], 100'000u);
    }
  }).join();
}

TEST(Scheduling, LeavesThreadsOfAnotherPolicyAlone) {
  std::thread([] {
    sched_param none{};
    ASSERT_EQ(sched_setscheduler(0, SCHED_BATCH, &none), 0);
    ask_for_short_slices();
    EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH);
  }).join();
}

}  // namespace
}  // namespace terrace::scheduling_test
