// Splitting masters and joining them again; that nothing is lost over all fp32 is bf16_walk_test.cpp.
#include <terrace/optimizer_cpu/masters.h>

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "element_access.h"
#include "instruction_set_cases.h"

namespace terrace::masters_test {
namespace {

class Masters : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(Masters);

std::vector<std::byte> random_bytes(size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST_P(Masters, SplitAndJoinInEverySizeAtAnyAddressAndWriteNothingBeyond) {
  std::mt19937 random(41);
  for (size_t count = 0; count <= 70; ++count) {
    const std::vector<std::byte> masters = random_bytes(1 + count * sizeof(float), random);
    std::vector<std::byte> parameters(2 + count * 2, std::byte{0x5a}), remainders(parameters);
    split_masters(GetParam(), MasterForm::remainder, masters.data() + 1, parameters.data() + 1,
                  remainders.data() + 1, count);
    std::vector<std::byte> joined(2 + count * sizeof(float), std::byte{0x5a});
    join_masters(GetParam(), MasterForm::remainder, parameters.data() + 1, remainders.data() + 1,
                 joined.data() + 1, count);
    for (size_t i = 0; i < count; ++i) {
      const float master = element(masters.data() + 1, DataType::fp32, i);
      const float parameter = element(parameters.data() + 1, DataType::bf16, i);
      ASSERT_TRUE(identical(parameter, to_float(to_bf16(master)))) << master;
      ASSERT_TRUE(
          identical(element(joined.data() + 1, DataType::fp32, i), std::isnan(master) ? parameter : master))
          << master;
    }
    for (const auto* bytes : {&parameters, &remainders, &joined}) {
      ASSERT_EQ(bytes->front(), std::byte{0x5a});
      ASSERT_EQ(bytes->back(), std::byte{0x5a});
    }
  }
}

TEST_P(Masters, KeepNothingOfANanButItsParameter) {
  const uint32_t bits[] = {0x7f800001u, 0xffc12345u, 0x7fffffffu, 0xff80ffffu};
  for (const uint32_t nan : bits) {
    const std::vector<uint32_t> masters(40, nan);
    std::vector<uint16_t> parameters(40), remainders(40, 7);
    split_masters(GetParam(), MasterForm::remainder, reinterpret_cast<const std::byte*>(masters.data()),
                  reinterpret_cast<std::byte*>(parameters.data()),
                  reinterpret_cast<std::byte*>(remainders.data()), 40);
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(parameters[i], (nan >> 16) | 0x40u);
      EXPECT_EQ(remainders[i], 0);
    }
  }
}

TEST_P(Masters, TurnRunsOfTilesIntoTheCanonicalFormAndBack) {
  constexpr size_t kTiles = 3;
  std::mt19937 random(42);
  for (const MasterForm form : {MasterForm::remainder, MasterForm::parameter}) {
    const DataType parameter = master_parameter_type(form);
    for (const uint32_t moments : {0u, 1u, 2u}) {
      const MomentType type = moments == 1 ? MomentType::bf16 : MomentType::fp32;
      const RecordLayout compact{form, moments, type};
      if (compact.tile_bytes() == 0) continue;  // there are no empty records
      const size_t canonical_bytes = kTiles * compact.canonical().tile_bytes();
      std::vector<std::byte> canonical = random_bytes(canonical_bytes, random);
      for (size_t tile = 0; tile < kTiles; ++tile) {  // no NaN among the masters
        for (size_t i = 0; i < kTileElements; ++i) {
          std::byte* const masters = canonical.data() + tile * compact.canonical().tile_bytes();
          if (std::isnan(element(masters, DataType::fp32, i))) set_element(masters, DataType::fp32, i, 1);
        }
      }
      std::vector<std::byte> record(kTiles * compact.tile_bytes()),
          parameters(kTiles * kTileElements * bytes_of(parameter));
      split_tiles(GetParam(), compact, canonical.data(), record.data(), parameters.data(), kTiles);
      std::vector<std::byte> back(canonical_bytes);
      join_tiles(GetParam(), compact, record.data(), parameters.data(), back.data(), kTiles);
      EXPECT_TRUE(back == canonical) << text_of(compact);
      for (size_t i = 0; i < kTileElements; ++i) {
        const float master = element(canonical.data() + compact.canonical().tile_bytes(), DataType::fp32, i);
        ASSERT_TRUE(identical(element(parameters.data() + kTileElements * bytes_of(parameter), parameter, i),
                              form == MasterForm::remainder ? to_float(to_bf16(master)) : master));
      }
    }
  }
}

}  // namespace
}  // namespace terrace::masters_test
