#include <terrace/base/data_type.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terrace::data_type_test {
namespace {

float from_bits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(Bf16, RoundsToTheNearestWithTiesAwayFromZero) {
  EXPECT_EQ(to_bf16(from_bits(0x3f807fff)).bits, 0x3f80);
  EXPECT_EQ(to_bf16(from_bits(0x3f808000)).bits, 0x3f81);  // a tie; to even would give 0x3f80
  EXPECT_EQ(to_bf16(from_bits(0x3f818000)).bits, 0x3f82);
  EXPECT_EQ(to_bf16(from_bits(0xbf808000)).bits, 0xbf81);
  EXPECT_EQ(to_bf16(from_bits(0x3f800000)).bits, 0x3f80);
}

TEST(Bf16, KeepsDenormalsAndTheSignOfZero) {
  EXPECT_EQ(to_bf16(0.0f).bits, 0x0000);
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_bf16(from_bits(0x00018000)).bits, 0x0002);
  EXPECT_EQ(to_bf16(from_bits(0x00007fff)).bits, 0x0000);
}

TEST(Bf16, OverflowsToInfinityAndKeepsInfinity) {
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
}

TEST(Bf16, KeepsEveryNanANanWithItsSign) {
  EXPECT_EQ(to_bf16(from_bits(0x7f800001)).bits,
            0x7fc0);  // signalling, payload below bf16: must not become infinity
  EXPECT_EQ(to_bf16(from_bits(0x7fffffff)).bits, 0x7fff);  // rounding up would wrap to -0
  EXPECT_EQ(to_bf16(from_bits(0xffffffff)).bits, 0xffff);
  EXPECT_EQ(to_bf16(from_bits(0xffc12345)).bits, 0xffc1);
}

TEST(Bf16, WidensExactly) {
  EXPECT_EQ(to_float(Bf16{0x4049}), from_bits(0x40490000));
  EXPECT_TRUE(std::isnan(to_float(Bf16{0x7fc0})));
}

// The compact state stores a master weight as its bf16 and an int16: bits(master) = (bf16 << 16) + remainder.
// True when that brings the value back; of a NaN only being one is asked.
bool comes_back(uint32_t bits) {
  const uint32_t upper = static_cast<uint32_t>(to_bf16(from_bits(bits)).bits) << 16;
  const auto remainder = static_cast<int16_t>(bits - upper);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const bool still_nan = (upper & 0x7fffffffu) > 0x7f800000u;
  return is_nan ? still_nan : upper + static_cast<uint32_t>(int32_t{remainder}) == bits;
}

// Every 251st value, a prime, so that every low half meets every exponent; optimizer_cpu walks all 2^32 with
// vectors.
TEST(Bf16, AndAnInt16RemainderRestoreTheFp32) {
  uint64_t lost = 0;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 251)
    lost += comes_back(static_cast<uint32_t>(bits)) ? 0 : 1;
  EXPECT_EQ(lost, 0u);
}

TEST(Fp16, RoundsToTheNearestWithTiesToEven) {
  EXPECT_EQ(to_fp16(1.0f).bits, 0x3c00);
  EXPECT_EQ(to_fp16(1.0f + 0x1p-11f).bits, 0x3c00);  // a tie; away from zero would give 0x3c01
  EXPECT_EQ(to_fp16(1.0f + 0x3p-11f).bits, 0x3c02);
  EXPECT_EQ(to_fp16(-1.0f - 0x1.8p-11f).bits, 0xbc01);
  EXPECT_EQ(to_fp16(0x1.ffep-14f + 0x1p-25f).bits, 0x0800);  // carries into the exponent
}

TEST(Fp16, KeepsDenormalsAndTheSignOfZero) {
  EXPECT_EQ(to_fp16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_fp16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(to_fp16(0x1p-25f).bits, 0x0000);  // a tie
  EXPECT_EQ(to_fp16(0x1.000002p-25f).bits, 0x0001);
  EXPECT_EQ(to_fp16(-0x3p-25f).bits, 0x8002);  // a tie
  EXPECT_EQ(to_fp16(0x1.ff8p-15f).bits, 0x03ff);
  EXPECT_EQ(to_fp16(0x1.ffcp-15f).bits, 0x0400);  // a tie, to the smallest normal
  EXPECT_EQ(to_fp16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
}

TEST(Fp16, OverflowsToInfinity) {
  EXPECT_EQ(to_fp16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_fp16(from_bits(0x477fefff)).bits, 0x7bff);  // just below 65520
  EXPECT_EQ(to_fp16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_fp16(-std::numeric_limits<float>::max()).bits, 0xfc00);
  EXPECT_EQ(to_fp16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
}

TEST(Fp16, KeepsEveryNanAQuietNanWithItsSign) {
  EXPECT_EQ(to_fp16(from_bits(0x7f800001)).bits, 0x7e00);
  EXPECT_EQ(to_fp16(from_bits(0xffffffff)).bits, 0xffff);
  EXPECT_EQ(std::bit_cast<uint32_t>(to_float(Fp16{0xfc01})), 0xffc02000u);
}

bool is_nan(Fp16 value) {
  return (value.bits & 0x7fffu) > 0x7c00u;
}

TEST(Fp16, WidensEveryHalfByItsDefinitionAndGetsItBack) {
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const Fp16 half{static_cast<uint16_t>(bits)};
    const float wide = to_float(half);
    const int exponent = static_cast<int>(bits >> 10 & 0x1fu);
    const auto mantissa = static_cast<double>(bits & 0x3ffu);
    if (is_nan(half)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_EQ(to_fp16(wide).bits, bits | 0x0200u);
      continue;
    }
    const double magnitude = exponent == 31  ? std::numeric_limits<double>::infinity()
                             : exponent == 0 ? mantissa * 0x1p-24
                                             : std::ldexp(1 + mantissa / 1024, exponent - 15);
    ASSERT_EQ(static_cast<double>(std::abs(wide)), magnitude) << bits;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000u) != 0) << bits;
    ASSERT_EQ(to_fp16(wide).bits, bits);
  }
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) uint16_t narrowed_by_hardware(float value) {
  return static_cast<uint16_t>(
      _mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT), 0));
}
__attribute__((target("f16c"))) float widened_by_hardware(uint16_t bits) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

// Every half; every 251st fp32, a prime, so that every low half meets every exponent: optimizer_cpu walks all
// 2^32.
TEST(Fp16, ConvertsAsTheProcessorDoes) {
  // Clang cannot ask for F16C, which every processor with AVX2 has.
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(to_float(Fp16{half})),
              std::bit_cast<uint32_t>(widened_by_hardware(half)));
  }
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 251) {
    const float value = from_bits(static_cast<uint32_t>(bits));
    ASSERT_EQ(to_fp16(value).bits, narrowed_by_hardware(value)) << std::hex << bits;
  }
}
#endif

TEST(DataType, KnowsItsSizeAndName) {
  EXPECT_EQ(bytes_of(DataType::fp32), 4u);
  EXPECT_EQ(bytes_of(DataType::bf16), 2u);
  EXPECT_EQ(bytes_of(DataType::fp16), 2u);
  EXPECT_EQ(name_of(DataType::fp32), "fp32");
  EXPECT_EQ(name_of(DataType::bf16), "bf16");
  EXPECT_EQ(name_of(DataType::fp16), "fp16");
}

}  // namespace
}  // namespace terrace::data_type_test
