// All 2^32 fp32 values through the conversion to bf16. The compact state stores a master weight as its bf16
// and an int16: bits(master) = (bf16 << 16) + remainder; this is where that is known to lose nothing.
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <thread>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {
namespace {

constexpr uint32_t kHalf = 0x10000;

constexpr bool is_nan(uint32_t bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

// The fp32 values with one upper half, converted.
struct Block {
  std::vector<float> values = std::vector<float>(kHalf);
  std::vector<Bf16> converted = std::vector<Bf16>(kHalf);

  void convert(uint32_t upper) {
    for (uint32_t low = 0; low < kHalf; ++low) values[low] = std::bit_cast<float>(upper << 16 | low);
    convert_from_float(best_instruction_set(), values.data(), reinterpret_cast<std::byte*>(converted.data()),
                       DataType::bf16, kHalf);
  }

  // How many masters the pair (bf16, int16) cannot restore; of a NaN only being one is asked.
  uint32_t count_lost(uint32_t upper) const {
    uint32_t lost = 0;
    if (is_nan(upper << 16 | 1)) {  // all but low half 0 of an infinity
      for (uint32_t low = 0; low < kHalf; ++low) {
        const uint32_t back = static_cast<uint32_t>(converted[low].bits) << 16;
        lost += is_nan(upper << 16 | low) ? !is_nan(back) : back != (upper << 16);
      }
      return lost;
    }
    for (uint32_t low = 0; low < kHalf; ++low) {
      const uint32_t remainder = (upper << 16 | low) - (static_cast<uint32_t>(converted[low].bits) << 16);
      lost += remainder + 0x8000u > 0xffffu ? 1 : 0;  // outside [-32768, 32767]
    }
    return lost;
  }
};

uint64_t count_lost(uint32_t first_upper, uint32_t stride) {
  Block block;
  uint64_t lost = 0;
  for (uint32_t upper = first_upper; upper < kHalf; upper += stride) {
    block.convert(upper);
    lost += block.count_lost(upper);
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
}  // namespace terrace
