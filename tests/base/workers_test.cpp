#include <terrace/base/workers.h>

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <stdexcept>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace terrace::workers_test {
namespace {

TEST(Workers, CallTheBodyOnceForEveryIndexOfEveryCount) {
  for (const size_t thread_count : {1, 2, 3}) {
    Workers workers(thread_count);
    EXPECT_EQ(workers.thread_count(), thread_count);
    for (const size_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      workers.parallel_for(count, [&](size_t i) { ++calls[i]; });
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(calls[i], 1) << "index " << i << " of " << count;
    }
  }
}

TEST(Workers, TakeEveryAvailableCoreWhenNotTold) {
  const Workers workers(0);
  EXPECT_GE(workers.thread_count(), 1u);
}

TEST(Workers, NumberTheirThreadsBelowTheThreadCount) {
  Workers workers(3);
  std::atomic<bool> in_range = true;
  workers.parallel_for(1000, [&](size_t) {
    if (workers.current_thread_index() >= 3) in_range = false;
  });
  EXPECT_TRUE(in_range);
}

TEST(Workers, NeverRunTwoBodiesUnderOneThreadIndexAtOnce) {
  Workers workers(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<bool> shared = false;
  workers.parallel_for(1000, [&](size_t) {
    std::atomic<int>& mine = busy[workers.current_thread_index()];
    for (int i = 0; i < 1000; ++i) {  // long enough for the threads to meet
      if (++mine != 1) shared = true;
      --mine;
    }
  });
  EXPECT_FALSE(shared);
}

TEST(Workers, RethrowAnExceptionOfTheBodyAndGoOnWorking) {
  for (const size_t thread_count : {1, 2}) {
    Workers workers(thread_count);
    EXPECT_THROW(workers.parallel_for(100,
                                      [](size_t i) {
                                        if (i == 57) throw std::runtime_error("index 57");
                                      }),
                 std::runtime_error);
    std::atomic<size_t> calls = 0;
    workers.parallel_for(100, [&](size_t) { ++calls; });
    EXPECT_EQ(calls, 100u);
  }
}

#if defined(__x86_64__)
TEST(Workers, ComputeWithDenormalsAndRoundToNearestWhateverTheCallerHadSet) {
  const unsigned saved = _mm_getcsr();
  for (const size_t thread_count : {1, 2}) {
    Workers workers(thread_count);
    _mm_setcsr(saved | 0x8040u | 0x2000u);  // flush to zero, denormals are zero, round down
    std::atomic<int> wrong = 0;
    workers.parallel_for(64, [&](size_t) {
      volatile float tiny = std::numeric_limits<float>::min();
      volatile float half = tiny * 0.5f;
      volatile float one = 1.0f;
      volatile float next = one + 0x1.8p-24f;  // nearest is 1 + 2^-23; rounding down gives 1
      if (half == 0.0f || next == 1.0f) ++wrong;
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(_mm_getcsr() & 0xffc0u, (saved | 0x8040u | 0x2000u) & 0xffc0u)
        << "the caller's is not as it was";
  }
  _mm_setcsr(saved);
}
#endif

}  // namespace
}  // namespace terrace::workers_test
