// What the kernels' tests share: the ways to run a kernel that must not change a bit, and comparisons with
// the host's operations.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <terrace/reference/model/compute/cuda/library_products.h>

#include "device_memory.h"
#include "reference/model/compute/compute_test_support.h"

namespace terrace::testing {

// A grid, and the order in which the emulator runs a block's threads.
struct Way {
  uint32_t block_limit;
  bool backwards;
};
inline constexpr Way kWays[] = {{1u << 20, false}, {1, true}, {3, false}};

class CudaKernels : public ::testing::Test {
 protected:
  // body(ops) in every way.
  template <typename Body>
  void in_every_way(Body body) {
    for (const Way& way : kWays) {
      SCOPED_TRACE("at most " + std::to_string(way.block_limit) + " blocks" +
                   (way.backwards ? ", threads backwards" : ""));
      run_threads_backwards(way.backwards);
      const CudaOps ops(products_, {.block_limit = way.block_limit});
      body(ops);
      if (HasFatalFailure()) break;
    }
    run_threads_backwards(false);
  }

  // A product has the host's bits where the host has fused multiply-adds.
  bool host_fuses() const { return best_instruction_set() != InstructionSet::scalar; }

  Workers workers_{2};
  HostOps host_{workers_, best_instruction_set()};
  WorkMemory host_work_{16 * kMiB};
  TiledProducts products_;
  OnDevice<std::byte> device_bytes_{size_t{16} << 20};
  StackArena arena_{device_bytes_};
};

// A workspace as the library wants it, of the arena and for as long as that lives.
inline std::span<std::byte> taken_workspace(StackArena& arena, uint64_t bytes) {
  return take_library_memory({1, 1, 1}, {DataType::fp32, DataType::fp32, DataType::fp32}, bytes, arena)
      .workspace;
}

// The same bits in every element; NaN of any kind where `expected` has one.
template <typename T>
void expect_bits(const std::vector<T>& actual, const std::vector<T>& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) == 0) continue;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>) {
      const float a = to_float(actual[i]), e = to_float(expected[i]);
      if (std::isnan(a) && std::isnan(e)) continue;
      FAIL() << what << " at " << i << ": " << a << " instead of " << e;
    }
    FAIL() << what << " at " << i;
  }
}

// |actual - expected| <= tolerance * (1 + |expected|).
inline void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                         double tolerance, const char* what) {
  expect_near(actual, {expected.begin(), expected.end()}, tolerance, what);
}

}  // namespace terrace::testing
