// The emulator itself: that it finds what a GPU would leave undefined.
#include "emulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace terrace::emulator::emulator_test {
namespace {

TEST(CudaEmulator, RunsEveryThreadOfEveryBlockAcrossBarriers) {
  std::vector<int> seen(3 * 64);
  run(3, 64, [&] {
    TERRACE_SHARED(int, turned, 64);
    turned[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();
    seen[blockIdx.x * blockDim.x + threadIdx.x] = turned[63 - threadIdx.x];
    __syncthreads();
  });
  for (int i = 0; i < 3 * 64; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], 63 - i % 64);
}

TEST(CudaEmulator, ShufflesOfAWarpGiveTheOtherLanesValue) {
  std::vector<double> sums(64);
  run(1, 64, [&] {
    double value = 1.0 + threadIdx.x % 32;
    for (unsigned width = 16; width != 0; width /= 2) value += __shfl_xor_sync(0xffffffffu, value, width);
    sums[threadIdx.x] = value;
  });
  EXPECT_EQ(sums, std::vector<double>(64, 528.0));
}

// A kernel that lacks a barrier reads what is not there yet, in one order of its threads or the other.
TEST(CudaEmulator, ShowsAMissingBarrier) {
  for (const Order order : {Order::ascending, Order::descending}) {
    set_order(order);
    std::vector<float> read(32);
    run(1, 32, [&] {
      TERRACE_SHARED(float, values, 32);
      values[threadIdx.x] = 1.0f;
      read[threadIdx.x] = values[31 - threadIdx.x];
    });
    EXPECT_TRUE(std::isnan(read[order == Order::ascending ? 0 : 31]));
  }
  set_order(Order::ascending);
}

TEST(CudaEmulatorDeathTest, StopsThreadsThatWaitForOnesThatHaveEnded) {
  EXPECT_DEATH(run(1, 64,
                   [] {
                     if (threadIdx.x < 32) __syncthreads();
                   }),
               "different barriers");
  EXPECT_DEATH(run(1, 32,
                   [] {
                     TERRACE_SHARED(float, much, kSharedBytes / sizeof(float) + 1);
                     much[0] = 0.0f;
                   }),
               "shared memory");
}

}  // namespace
}  // namespace terrace::emulator::emulator_test
