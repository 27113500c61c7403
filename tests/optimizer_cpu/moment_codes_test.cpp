// Moments as codes: what moment_codes.h says of a block, and the update of records that have them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include <terrace/base/checksum.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/masters.h>
#include <terrace/optimizer_cpu/moment_codes.h>

#include "instruction_set_cases.h"
#include "update_problem.h"

namespace terrace::moment_codes_test {
namespace {

using kernels::MomentCode;

using Codes = std::array<std::array<std::byte, kMomentBlock>, 2>;

// The numbers of a block.
struct MomentBlock {
  std::array<std::array<float, kMomentBlock>, 2> values;
};

Codes encoded(const MomentBlock& block, uint32_t moments, std::optional<Chance> chance = {}) {
  Codes codes{};
  encode_blocks(InstructionSet::scalar,
                {block.values[0].data(), moments > 1 ? block.values[1].data() : nullptr}, kMomentBlock,
                chance, {codes[0].data(), moments > 1 ? codes[1].data() : nullptr});
  return codes;
}
MomentBlock decoded(const Codes& codes, uint32_t moments) {
  MomentBlock block{};
  decode_blocks(InstructionSet::scalar, {codes[0].data(), moments > 1 ? codes[1].data() : nullptr},
                kMomentBlock, {block.values[0].data(), moments > 1 ? block.values[1].data() : nullptr});
  return block;
}

// Numbers over many powers of two, with both signs for a first moment.
MomentBlock random_block(std::mt19937& random, float size) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-14, 0);
  MomentBlock block{};
  for (size_t i = 0; i < kMomentBlock; ++i) {
    block.values[0][i] = size * normal(random) * std::exp2(exponent(random));
    block.values[1][i] = size * std::abs(normal(random)) * std::exp2(exponent(random));
  }
  return block;
}

TEST(MomentCodes, KeepAsManyBytesAsThereAreElements) {
  for (const uint32_t moments : {1u, 2u}) {
    EXPECT_EQ((RecordLayout{MasterForm::remainder, moments, MomentType::int8}.tile_bytes()),
              kTileElements * (2 + moments));
    EXPECT_EQ((RecordLayout{MasterForm::whole, moments, MomentType::int8}.tile_bytes()),
              kTileElements * (4 + moments));
    EXPECT_EQ((RecordLayout{MasterForm::parameter, moments, MomentType::int8}.tile_bytes()),
              kTileElements * moments);
  }
}

// The header's formulas, written out in fp64.
TEST(MomentCodes, StandForTheNumbersThatTheHeaderSays) {
  for (const bool is_alone : {false, true}) {
    const MomentCode code(is_alone);
    const double low = is_alone ? 0x1p-16 * 1.25 : 0x1p-16 * 1.125;
    EXPECT_EQ(code.low(), static_cast<float>(low));
    const uint32_t steps_of_octave = is_alone ? 4 : 8;
    for (uint32_t c = 0; c <= code.levels(); ++c) {
      // Codes count from low, which is one step above 2^-16.
      const uint32_t at = c + 1;
      const double y = std::exp2(-16 + static_cast<int>(at / steps_of_octave)) *
                       (1 + at % steps_of_octave / static_cast<double>(steps_of_octave));
      EXPECT_EQ(code.value_of(c, 0, 1.0f), static_cast<float>(y - low)) << c;
      EXPECT_EQ(code.value_of(c, 1, 4.0f), static_cast<float>(-4 * (y - low))) << c;
    }
    EXPECT_EQ(code.value_of(code.levels(), 0, 1.0f), static_cast<float>(1 - low));
  }
}

TEST(MomentCodes, AreWithinHalfAStepWhereTheyAreRoundedToTheNearest) {
  std::mt19937 random(1);
  for (const uint32_t moments : {1u, 2u}) {
    const double step = moments == 1 ? 0.25 : 0.125, low = moments == 1 ? 0x1.4p-16 : 0x1.2p-16;
    for (int trial = 0; trial < 200; ++trial) {
      const MomentBlock block = random_block(random, std::exp2(static_cast<float>(trial % 60 - 30)));
      const MomentBlock back = decoded(encoded(block, moments), moments);
      for (uint32_t m = 0; m < moments; ++m) {
        double largest = 0;
        for (const float value : block.values[m]) largest = std::max(largest, std::abs(double{value}));
        for (size_t i = 0; i < kMomentBlock; ++i) {
          const double value = block.values[m][i];
          EXPECT_NEAR(back.values[m][i], value, (std::abs(value) + low * largest) * step / 2 * 1.0001)
              << value << " of " << largest;
          EXPECT_EQ(std::signbit(back.values[m][i]), std::signbit(block.values[m][i]));
        }
      }
    }
  }
}

// So a checkpoint, which has numbers, gives back the record that it was made of: also that of an update.
TEST(MomentCodes, AreTheSameAgainWhenTheirValuesAreCodedAgain) {
  std::mt19937 random(2);
  for (const uint32_t moments : {1u, 2u}) {
    for (int trial = 0; trial < 20'000; ++trial) {
      const float size = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7fffffffu);
      MomentBlock block = random_block(random, std::isfinite(size) ? size : 1.0f);
      if (trial % 7 == 0) block.values[0].fill(size);
      std::optional<Chance> by_chance;
      if (trial % 3 > 0) by_chance = Chance{random(), kMomentBlock * random()};
      const Codes codes = encoded(block, moments, by_chance);
      ASSERT_EQ(encoded(decoded(codes, moments), moments), codes) << "trial " << trial;
    }
  }
}

// Else its scale would be another one when it is coded again.
TEST(MomentCodes, GiveTheLargestNumberAllLevelsHoweverItIsRounded) {
  std::mt19937 random(4);
  for (const bool is_alone : {false, true}) {
    const MomentCode code(is_alone);
    for (int trial = 0; trial < 2'000'000; ++trial) {
      // Of a scale that is no denormal, nor its inverse.
      const uint32_t largest = 0x03900000u + static_cast<uint32_t>(random()) % (0x7e000000u - 0x03900000u);
      const float inverse = MomentCode::inverse_of(code.scale_of(largest));
      for (const uint32_t r : {0u, (1u << code.shift) - 1})
        ASSERT_EQ(code.code_of(largest, inverse, r), code.levels()) << largest;
    }
  }
}

TEST(MomentCodes, AreZeroForZerosAndNanForABlockWithANumberThatIsNotFinite) {
  MomentBlock block{};
  EXPECT_EQ(encoded(block, 2), Codes{});
  EXPECT_EQ(encoded(block, 2, Chance{12345, 0}), Codes{});
  block.values[0].fill(0x1p-130f);
  EXPECT_EQ(encoded(block, 1), Codes{});
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const uint32_t moments : {1u, 2u}) {
      std::mt19937 random(3);
      MomentBlock mixed = random_block(random, 1);
      mixed.values[moments - 1][17] = bad;
      const MomentBlock back = decoded(encoded(mixed, moments, Chance{5, 64}), moments);
      for (const float value : back.values[moments - 1]) EXPECT_TRUE(std::isnan(value));
      if (moments == 2) {
        for (const float value : back.values[0]) EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

// Over many draws the mean is the number, wherever it lies between two codes.
TEST(MomentCodes, AreRoundedAtRandomWithoutABias) {
  constexpr uint32_t kDraws = 20'000;
  MomentBlock block{};
  for (size_t i = 0; i < kMomentBlock; ++i) {
    block.values[0][i] = (i % 2 == 0 ? 1.0f : -1.0f) * std::exp2(-0.23f * static_cast<float>(i));
    block.values[1][i] = std::exp2(-0.19f * static_cast<float>(i));
  }
  for (const uint32_t moments : {1u, 2u}) {
    std::array<std::array<double, kMomentBlock>, 2> sums{};
    for (uint32_t draw = 0; draw < kDraws; ++draw) {
      const Chance chance{kernels::rounding_key_of(draw), 7 * kMomentBlock};
      const MomentBlock back = decoded(encoded(block, moments, chance), moments);
      for (uint32_t m = 0; m < moments; ++m) {
        for (size_t i = 0; i < kMomentBlock; ++i) sums[m][i] += back.values[m][i];
      }
    }
    const double step = moments == 1 ? 0.25 : 0.125, low = moments == 1 ? 0x1.4p-16 : 0x1.2p-16;
    for (uint32_t m = 0; m < moments; ++m) {
      for (size_t i = 0; i < kMomentBlock; ++i) {
        const double value = block.values[m][i];
        // Five standard deviations of the mean, of which half a step is the most that one draw has.
        const double bound = 5 * (std::abs(value) + low) * step / 2 / std::sqrt(double{kDraws});
        EXPECT_NEAR(sums[m][i] / kDraws, value, bound + 1e-4 * std::abs(value))
            << "moment " << m << " of " << i;
      }
    }
  }
}

TEST(MomentCodes, DrawOtherNumbersForOtherStepsTensorsBlocksAndElements) {
  std::vector<uint32_t> drawn;
  for (const uint64_t step : {1u, 2u}) {
    for (const uint64_t tensor : {0u, 1u}) {
      for (const uint64_t element : {0u, 64u}) {
        const uint64_t block = kernels::rounding_place_of(tensor, element) / kMomentBlock;
        const uint64_t of_first = kernels::random_of_block(kernels::rounding_key_of(step), block);
        for (const uint64_t random : {of_first, kernels::random_of_second(of_first)}) {
          for (uint32_t lane = 0; lane < kMomentBlock; ++lane)
            drawn.push_back(kernels::random_of(random, lane));
        }
      }
    }
  }
  std::ranges::sort(drawn);
  EXPECT_EQ(std::ranges::adjacent_find(drawn), drawn.end());
}

// How far two runs of random numbers go together, from -1 to 1.
double correlation(std::span<const double> a, std::span<const double> b) {
  double together = 0, a_alone = 0, b_alone = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    together += a[i] * b[i];
    a_alone += a[i] * a[i];
    b_alone += b[i] * b[i];
  }
  return together / std::sqrt(a_alone * b_alone);
}

TEST(MomentCodes, DrawNumbersThatAreIndependentInPairs) {
  constexpr size_t kDraws = 4096;
  // By moment and lane, around 0.
  std::vector<std::vector<double>> drawn(2 * kMomentBlock);
  for (size_t draw = 0; draw < kDraws; ++draw) {
    const uint64_t first = kernels::random_of_block(kernels::rounding_key_of(1 + draw / 64), draw % 64);
    for (size_t i = 0; i < drawn.size(); ++i) {
      const uint64_t random = i < kMomentBlock ? first : kernels::random_of_second(first);
      const uint32_t r = MomentCode(false).rounding_of(kernels::random_of(random, i % kMomentBlock));
      ASSERT_LT(r, uint32_t{1} << MomentCode(false).shift);
      drawn[i].push_back(r / std::exp2(MomentCode(false).shift) - 0.5);
    }
  }
  for (size_t i = 0; i < drawn.size(); ++i) {
    for (size_t k = 0; k < i; ++k)
      EXPECT_NEAR(correlation(drawn[i], drawn[k]), 0, 5 / std::sqrt(double{kDraws})) << i << " and " << k;
  }
}

// Records of four tiles with codes, gradients and parameters beside them.
struct Records {
  static constexpr size_t kTiles = 4, kElements = kTiles * kTileElements;
  RecordLayout layout;
  DataType gradient_type, parameter_type;
  std::vector<std::byte> record, gradients, parameters;

  Records(const OptimizerSettings& settings, MasterForm form, DataType gradient, DataType parameter,
          std::mt19937& random, bool any_bits)
      : layout{form, moment_count(settings.kind, settings.momentum), MomentType::int8},
        gradient_type(gradient),
        parameter_type(form == MasterForm::whole ? parameter : master_parameter_type(form)),
        record(kTiles * layout.tile_bytes()),
        gradients(kElements * bytes_of(gradient_type)),
        parameters(kElements * bytes_of(parameter_type)) {
    std::normal_distribution<float> normal;
    const auto draw = [&](float size) {
      return any_bits ? std::bit_cast<float>(static_cast<uint32_t>(random())) : size * normal(random);
    };
    std::vector<float> masters(kElements), given(kElements);
    for (float& value : masters) value = draw(1);
    for (float& value : given) value = draw(0.3f);
    convert_from_float(InstructionSet::scalar, given.data(), gradients.data(), gradient_type, kElements);
    for (size_t tile = 0; tile < kTiles; ++tile) {
      std::byte* const at = record.data() + tile * layout.tile_bytes();
      const auto* const from = reinterpret_cast<const std::byte*>(masters.data() + tile * kTileElements);
      if (form == MasterForm::whole) {
        std::memcpy(at, from, layout.master_bytes());
      } else {
        split_masters(InstructionSet::scalar, form, from,
                      parameters.data() + tile * kTileElements * bytes_of(parameter_type), at, kTileElements);
      }
      // With any bits, these are any codes and any scales.
      for (size_t i = 0; any_bits && i < layout.moment_count * layout.moment_bytes(); ++i)
        at[layout.moment_offset(0) + i] = std::byte(static_cast<uint8_t>(random()));
    }
  }
  void update(InstructionSet set, const OptimizerStep& step, size_t first, size_t count) {
    update_tiles(set, step,
                 {.layout = layout,
                  .record = record.data(),
                  .gradients = gradients.data(),
                  .gradient_type = gradient_type,
                  .parameters = parameters.data(),
                  .parameter_type = parameter_type,
                  .old_parameters = layout.master == MasterForm::whole ? nullptr : parameters.data(),
                  .first_element = first,
                  .element_count = count,
                  .rounding_place = kernels::rounding_place_of(3, 128)});
  }
};

template <typename Body>
void for_every_records(std::mt19937& random, bool any_bits, Body body) {
  for (const OptimizerSettings& settings : every_settings()) {
    if (moment_count(settings.kind, settings.momentum) == 0) continue;
    for (const MasterForm form : {MasterForm::whole, MasterForm::remainder, MasterForm::parameter}) {
      for (const DataType gradient : kEveryType) {
        const DataType parameter = kEveryType[random() % std::size(kEveryType)];
        SCOPED_TRACE(name_of(settings) + ", " + text_of(RecordLayout{form, 0}) + ", " +
                     std::string(name_of(gradient)));
        body(settings, Records(settings, form, gradient, parameter, random, any_bits));
      }
    }
  }
}

class CodedUpdate : public EveryInstructionSet {};
TERRACE_ON_EVERY_INSTRUCTION_SET(CodedUpdate);

TEST_P(CodedUpdate, HasTheBitsOfTheScalarReference) {
  std::mt19937 random(21);
  for (const bool any_bits : {false, true}) {
    for_every_records(random, any_bits, [&](const OptimizerSettings& settings, const Records& start) {
      Records reference = start, records = start;
      for (uint64_t step = 1; step <= 3; ++step) {
        const OptimizerStep constants = make_optimizer_step(settings, step, 0.73f);
        reference.update(InstructionSet::scalar, constants, 0, Records::kElements);
        records.update(GetParam(), constants, 0, Records::kElements);
        ASSERT_EQ(records.record, reference.record) << "step " << step;
        ASSERT_EQ(records.parameters, reference.parameters) << "step " << step;
      }
    });
  }
}

TEST_P(CodedUpdate, DoesNotDependOnHowBlocksAreCutIntoRunsAndTouchesNoOther) {
  std::mt19937 random(22);
  for_every_records(random, false, [&](const OptimizerSettings& settings, const Records& start) {
    const OptimizerStep step = make_optimizer_step(settings, 2);
    Records whole = start, cut = start;
    whole.update(GetParam(), step, 0, Records::kElements);
    constexpr size_t kBlocks = Records::kElements / kMomentBlock;
    for (size_t block = 0; block < kBlocks;) {
      const size_t blocks = std::min<size_t>(1 + random() % 30, kBlocks - block);
      cut.update(GetParam(), step, block * kMomentBlock, blocks * kMomentBlock);
      block += blocks;
    }
    ASSERT_EQ(cut.record, whole.record);
    ASSERT_EQ(cut.parameters, whole.parameters);
    Records middle = start;
    middle.update(GetParam(), step, 64 * 70, 64 * 5);
    const size_t in_tile = 64 * 70 - kTileElements;
    for (uint32_t m = 0; m < start.layout.moment_count; ++m) {
      const size_t at = start.layout.tile_bytes() + start.layout.moment_offset(m);
      for (size_t i = 0; i < kTileElements; ++i) {
        const bool inside = i >= in_tile && i < in_tile + 64 * 5;
        ASSERT_EQ(middle.record[at + i], inside ? whole.record[at + i] : start.record[at + i]) << i;
      }
    }
  });
}

// The weight moves by what the formula makes of the numbers that the codes stand for.
TEST_P(CodedUpdate, MovesTheWeightAsTheSameNumbersInFp32Do) {
  std::mt19937 random(23);
  for_every_records(random, false, [&](const OptimizerSettings& settings, const Records& start) {
    Records coded = start;
    coded.update(InstructionSet::scalar, make_optimizer_step(settings, 1), 0, Records::kElements);
    const RecordLayout plain{start.layout.master, start.layout.moment_count, MomentType::fp32};
    std::vector<std::byte> record(Records::kTiles * plain.tile_bytes());
    for (size_t t = 0; t < Records::kTiles; ++t) {
      const std::byte* const from = coded.record.data() + t * coded.layout.tile_bytes();
      std::byte* const to = record.data() + t * plain.tile_bytes();
      std::memcpy(to, from, plain.master_bytes());
      std::array<float*, 2> moments{};
      for (uint32_t m = 0; m < plain.moment_count; ++m)
        moments[m] = reinterpret_cast<float*>(to + plain.moment_offset(m));
      decode_moments(InstructionSet::scalar, coded.layout, from, moments);
    }
    Records numbers = coded;
    numbers.layout = plain;
    numbers.record = record;
    const OptimizerStep step = make_optimizer_step(settings, 2);
    coded.update(GetParam(), step, 0, Records::kElements);
    numbers.update(GetParam(), step, 0, Records::kElements);
    ASSERT_EQ(coded.parameters, numbers.parameters);
    for (size_t t = 0; t < Records::kTiles; ++t) {
      ASSERT_EQ(std::memcmp(coded.record.data() + t * coded.layout.tile_bytes(),
                            numbers.record.data() + t * plain.tile_bytes(), plain.master_bytes()),
                0);
    }
  });
}

TEST_P(CodedUpdate, LeavesRecordsThatBecomeCanonicalOnesAndBackWithoutAChange) {
  std::mt19937 random(24);
  for_every_records(random, false, [&](const OptimizerSettings& settings, Records records) {
    for (uint64_t step = 1; step <= 2; ++step)
      records.update(best_instruction_set(), make_optimizer_step(settings, step), 0, Records::kElements);
    const RecordLayout canonical = records.layout.canonical();
    EXPECT_EQ(canonical, (RecordLayout{MasterForm::whole, records.layout.moment_count, MomentType::fp32}));
    std::vector<std::byte> joined(Records::kTiles * canonical.tile_bytes()), plainly(joined.size());
    join_tiles(GetParam(), records.layout, records.record.data(), records.parameters.data(), joined.data(),
               Records::kTiles);
    join_tiles(InstructionSet::scalar, records.layout, records.record.data(), records.parameters.data(),
               plainly.data(), Records::kTiles);
    ASSERT_EQ(joined, plainly);
    std::vector<std::byte> record(records.record.size()), parameters = records.parameters;
    split_tiles(GetParam(), records.layout, joined.data(), record.data(), parameters.data(), Records::kTiles);
    ASSERT_EQ(record, records.record);
    ASSERT_EQ(parameters, records.parameters);
  });
}

// Numbers that were never codes, of which some are not finite.
TEST_P(CodedUpdate, RoundsAnyNumbersToTheNearestAsTheScalarReferenceDoes) {
  std::mt19937 random(26);
  for (const uint32_t moments : {1u, 2u}) {
    const RecordLayout layout{MasterForm::parameter, moments, MomentType::int8};
    for (int trial = 0; trial < 40; ++trial) {
      std::array<std::vector<float>, 2> values{std::vector<float>(kTileElements),
                                               std::vector<float>(kTileElements)};
      for (std::vector<float>& each : values) {
        for (float& value : each)
          value = std::bit_cast<float>(static_cast<uint32_t>(random()) >> (trial % 3));
      }
      std::vector<std::byte> tile(layout.tile_bytes()), plainly(tile.size());
      encode_moments(GetParam(), layout, {values[0].data(), values[1].data()}, tile.data());
      encode_moments(InstructionSet::scalar, layout, {values[0].data(), values[1].data()}, plainly.data());
      ASSERT_EQ(tile, plainly);
    }
  }
}

TEST(CodedRecords, GiveAndTakeSingleValues) {
  std::mt19937 random(25);
  for (const uint32_t moments : {1u, 2u}) {
    const RecordLayout layout{MasterForm::remainder, moments, MomentType::int8};
    std::vector<std::byte> tile(layout.tile_bytes());
    std::array<std::vector<float>, 2> values;
    for (uint32_t m = 0; m < moments; ++m) {
      for (size_t i = 0; i < kTileElements; ++i)
        values[m].push_back(static_cast<float>(random() % 1000) * (m == 0 && i % 2 == 0 ? -0.01f : 0.01f));
      write_moment_codes(layout, tile.data(), m, 0, values[m]);
    }
    std::array<std::vector<float>, 2> numbers{std::vector<float>(kTileElements),
                                              std::vector<float>(kTileElements)};
    decode_moments(InstructionSet::scalar, layout, tile.data(), {numbers[0].data(), numbers[1].data()});
    for (uint32_t m = 0; m < moments; ++m) {
      std::vector<float> some(300);
      read_moment_codes(layout, tile.data(), m, 1111, some);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), numbers[m].begin() + 1111));
      const std::vector<std::byte> before = tile;
      write_moment_codes(layout, tile.data(), m, 1111, some);  // what is there already
      EXPECT_EQ(tile, before);
    }
  }
}

// These bytes are in files: they mean the same numbers always. How an update rounds is no part of a file.
TEST(CodedRecords, AreThoseOfEveryEarlierVersion) {
  Codes codes{};
  for (size_t i = 0; i < kMomentBlock; ++i) {
    codes[0][i] = std::byte(static_cast<uint8_t>(3 * i));
    // The scales are 0.5 and 0.25, of which a block of one moment has the second.
    codes[1][i] = std::byte(static_cast<uint8_t>(2 * i % 128 + ((0x3f0000003e800000u >> i & 1u) << 7)));
  }
  const MomentBlock two = decoded(codes, 2), one = decoded({codes[1]}, 1);
  EXPECT_EQ(checksum_of(std::as_bytes(std::span(two.values))), 13263940363572448697u);
  EXPECT_EQ(checksum_of(std::as_bytes(std::span(one.values[0]))), 12914188695903275890u);
}

TEST(CodedRecords, AreRoundedByTheSameRandomNumbersAsInLaterVersions) {
  MomentBlock block{};
  for (size_t i = 0; i < kMomentBlock; ++i) {
    block.values[0][i] = (i % 3 == 0 ? -1.0f : 1.0f) / static_cast<float>(i + 1);
    block.values[1][i] = 1.0f / static_cast<float>((i + 1) * (i + 1));
  }
  const Codes two = encoded(block, 2, Chance{42, 64}), one = encoded(block, 1, Chance{42, 64});
  EXPECT_EQ(checksum_of(std::as_bytes(std::span(two))), 11698313005207328768u);
  EXPECT_EQ(checksum_of(std::span<const std::byte>(one[0])), 31250599576922857u);
}

}  // namespace
}  // namespace terrace::moment_codes_test
