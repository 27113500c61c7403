#include <terrace/reference/model/compute/counter_random.h>

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace terrace::counter_random_test {
namespace {

// The known answers of the authors' library Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(CounterRandom, GivesTheKnownAnswersOfPhilox) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (std::array<uint32_t, 4>{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(CounterRandom, DoesNotDependOnHowARangeIsCut) {
  const RandomStream stream{.seed = 3, .stream = 11};
  std::vector<float> whole(257);
  fill_normal(stream, 5, 0.5f, whole);
  for (const size_t cut : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{64}}) {
    std::vector<float> pieces(whole.size());
    for (size_t first = 0; first < pieces.size(); first += cut) {
      const size_t count = std::min(cut, pieces.size() - first);
      fill_normal(stream, 5 + first, 0.5f, std::span(pieces).subspan(first, count));
    }
    EXPECT_EQ(pieces, whole) << "pieces of " << cut;
  }
}

TEST(CounterRandom, StreamsAndSeedsAreApart) {
  std::vector<float> one(64), other_stream(64), other_seed(64);
  fill_normal({.seed = 1, .stream = 1}, 0, 1.0f, one);
  fill_normal({.seed = 1, .stream = 2}, 0, 1.0f, other_stream);
  fill_normal({.seed = 2, .stream = 1}, 0, 1.0f, other_seed);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NE(one[i], other_stream[i]);
    EXPECT_NE(one[i], other_seed[i]);
  }
}

TEST(CounterRandom, NormalValuesAreThoseOfBoxAndMuller) {
  const RandomStream stream{.seed = 9, .stream = 4};
  std::vector<float> values(4096);
  fill_normal(stream, 0, 1.0f, values);
  for (size_t i = 0; i < values.size(); i += 2) {
    const double radius = std::sqrt(-2.0 * std::log((random_bits(stream, i) + 0.5) * 0x1p-32));
    const double angle = 2.0 * std::numbers::pi * (random_bits(stream, i + 1) * 0x1p-32);
    ASSERT_NEAR(values[i], radius * std::cos(angle), 1e-6);
    ASSERT_NEAR(values[i + 1], radius * std::sin(angle), 1e-6);
  }
}

TEST(CounterRandom, HasTheMomentsOfItsDistributions) {
  const RandomStream stream{.seed = 1, .stream = 0};
  const size_t count = 200000;
  std::vector<float> normals(count);
  fill_normal(stream, 0, 2.0f, normals);
  double sum = 0, squares = 0, uniforms = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += normals[i];
    squares += static_cast<double>(normals[i]) * normals[i];
    const float value = uniform(stream, i);
    ASSERT_GE(value, 0.0f);
    ASSERT_LT(value, 1.0f);
    uniforms += value;
  }
  EXPECT_NEAR(sum / count, 0.0, 0.02);
  EXPECT_NEAR(squares / count, 4.0, 0.05);
  EXPECT_NEAR(uniforms / count, 0.5, 0.005);
}

}  // namespace
}  // namespace terrace::counter_random_test
