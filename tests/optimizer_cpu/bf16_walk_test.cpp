// All 2^32 fp32 values split into bf16 and int16 (masters.h) and joined again: this is where the compact
// state is known to lose nothing.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/masters.h>

namespace terrace::bf16_walk_test {
namespace {

constexpr uint32_t kHalf = 0x10000;

constexpr bool is_nan(uint32_t bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

// The fp32 values with one upper half, split and joined.
struct Block {
  std::vector<uint32_t> values = std::vector<uint32_t>(kHalf);
  std::vector<uint32_t> joined = std::vector<uint32_t>(kHalf);
  std::vector<uint16_t> parameters = std::vector<uint16_t>(kHalf);
  std::vector<uint16_t> remainders = std::vector<uint16_t>(kHalf);

  void walk(uint32_t upper) {
    for (uint32_t low = 0; low < kHalf; ++low) values[low] = upper << 16 | low;
    const auto bytes = [](auto& array) { return reinterpret_cast<std::byte*>(array.data()); };
    const InstructionSet set = best_instruction_set();
    split_masters(set, MasterForm::remainder, bytes(values), bytes(parameters), bytes(remainders), kHalf);
    join_masters(set, MasterForm::remainder, bytes(parameters), bytes(remainders), bytes(joined), kHalf);
  }

  // How many masters did not come back, or have another upper half than to_bf16() gives them. Of a NaN its
  // parameter is to come back.
  uint32_t count_lost() const {
    uint32_t lost = 0;
    for (uint32_t low = 0; low < kHalf; ++low) {
      const Bf16 parameter = to_bf16(std::bit_cast<float>(values[low]));
      const uint32_t expected =
          is_nan(values[low]) ? static_cast<uint32_t>(parameter.bits) << 16 : values[low];
      lost += (joined[low] != expected ? 1 : 0) | (parameters[low] != parameter.bits ? 1 : 0);
    }
    return lost;
  }
};

uint64_t count_lost(uint32_t first_upper, uint32_t stride) {
  Block block;
  uint64_t lost = 0;
  for (uint32_t upper = first_upper; upper < kHalf; upper += stride) {
    block.walk(upper);
    lost += block.count_lost();
  }
  return lost;
}

TEST(Bf16Walk, RestoresEveryFp32FromItsBf16AndAnInt16) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  constexpr uint32_t kStride =
      2 * 61;  // two threads, each taking every 61st of its upper halves: 61 times faster
  RecordProperty("walked", "every 61st upper half: an instrumented or unoptimized build");
#else
  constexpr uint32_t kStride = 2;
#endif
  uint64_t lost_odd = 0;
  std::thread odd([&] { lost_odd = count_lost(1, kStride); });
  const uint64_t lost_even = count_lost(0, kStride);
  odd.join();
  EXPECT_EQ(lost_even + lost_odd, 0u);
}

}  // namespace
}  // namespace terrace::bf16_walk_test
