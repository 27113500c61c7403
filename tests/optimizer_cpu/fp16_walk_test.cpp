// All 2^32 fp32 values through the conversion to fp16: the vector kernels use the processor's instructions,
// the scalar ones to_fp16() of base/data_type.h, and there must be no value on which they differ.
#include <gtest/gtest.h>

#include <bit>
#include <thread>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace::fp16_walk_test {
namespace {

constexpr uint32_t kBlock = 0x10000;

// How many values of every `stride`-th upper half the two conversions round differently.
uint64_t count_different(uint32_t first_upper, uint32_t stride) {
  std::vector<float> values(kBlock);
  std::vector<Fp16> converted(kBlock);
  uint64_t different = 0;
  for (uint32_t upper = first_upper; upper < kBlock; upper += stride) {
    for (uint32_t low = 0; low < kBlock; ++low) values[low] = std::bit_cast<float>(upper << 16 | low);
    convert_from_float(best_instruction_set(), values.data(), reinterpret_cast<std::byte*>(converted.data()),
                       DataType::fp16, kBlock);
    for (uint32_t low = 0; low < kBlock; ++low) {
      different += converted[low].bits != to_fp16(values[low]).bits ? 1 : 0;
    }
  }
  return different;
}

TEST(Fp16Walk, RoundsEveryFp32AsTheProcessorDoes) {
  if (best_instruction_set() == InstructionSet::scalar) GTEST_SKIP() << "no vector kernels to compare with";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  constexpr uint32_t kStride = 2 * 61;  // two threads, each taking every 61st of its upper halves
  RecordProperty("walked", "every 61st upper half: an instrumented or unoptimized build");
#else
  constexpr uint32_t kStride = 2;
#endif
  uint64_t different_odd = 0;
  std::thread odd([&] { different_odd = count_different(1, kStride); });
  const uint64_t different_even = count_different(0, kStride);
  odd.join();
  EXPECT_EQ(different_even + different_odd, 0u);
}

}  // namespace
}  // namespace terrace::fp16_walk_test
