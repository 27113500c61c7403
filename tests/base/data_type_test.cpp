#include <terrace/base/data_type.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace terrace {
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

TEST(DataType, KnowsItsSizeAndName) {
  EXPECT_EQ(bytes_of(DataType::fp32), 4u);
  EXPECT_EQ(bytes_of(DataType::bf16), 2u);
  EXPECT_EQ(bytes_of(DataType::fp16), 2u);
  EXPECT_EQ(name_of(DataType::fp32), "fp32");
  EXPECT_EQ(name_of(DataType::bf16), "bf16");
  EXPECT_EQ(name_of(DataType::fp16), "fp16");
}

}  // namespace
}  // namespace terrace
