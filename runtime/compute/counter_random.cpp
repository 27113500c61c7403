#include <terrace/runtime/compute/counter_random.h>

#include <bit>
#include <cmath>
#include <numbers>

namespace terrace {
namespace {

std::array<uint32_t, 4> block_of(const RandomStream& stream, uint64_t block) {
  return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                     static_cast<uint32_t>(stream.stream), static_cast<uint32_t>(stream.stream >> 32)},
                    {static_cast<uint32_t>(stream.seed), static_cast<uint32_t>(stream.seed >> 32)});
}

// The natural logarithm of a normal double in (0, 1), to about 1e-13: ln(2^e m) = e ln 2 + 2 atanh((m - 1) /
// (m + 1)).
double logarithm(double x) {
  uint64_t bits = std::bit_cast<uint64_t>(x);
  double exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023);
  double mantissa = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (mantissa > std::numbers::sqrt2) {
    mantissa *= 0.5;
    exponent += 1.0;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0), q = s * s;
  double series = 1.0 / 15.0;
  for (const double term : {1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0}) {
    series = series * q + term;
  }
  return exponent * std::numbers::ln2 + 2.0 * s * series;
}

struct Turned {
  double sine, cosine;
};

// Sine and cosine of a whole turn times `turns` in [0, 1), to about 1e-10: the Taylor series around the
// nearest quarter turn.
Turned turn(double turns) {
  const double quarters = turns * 4.0;
  const int quarter = static_cast<int>(quarters + 0.5);
  const double x = (quarters - static_cast<double>(quarter)) * (std::numbers::pi / 2.0), q = x * x;
  double sine = -1.0 / 39916800.0;
  for (const double term : {1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0})
    sine = sine * q + term;
  sine *= x;
  double cosine = 1.0 / 479001600.0;
  for (const double term : {-1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -1.0 / 2.0, 1.0}) {
    cosine = cosine * q + term;
  }
  switch (quarter & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

// Four normal values of a block: Box and Muller, "A note on the generation of random normal deviates", 1958.
std::array<float, 4> normals_of(const std::array<uint32_t, 4>& bits) {
  std::array<float, 4> values;
  for (size_t pair = 0; pair < 4; pair += 2) {
    const double radius = std::sqrt(-2.0 * logarithm((bits[pair] + 0.5) * 0x1p-32));
    const Turned angle = turn(bits[pair + 1] * 0x1p-32);
    values[pair] = static_cast<float>(radius * angle.cosine);
    values[pair + 1] = static_cast<float>(radius * angle.sine);
  }
  return values;
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

uint32_t random_bits(const RandomStream& stream, uint64_t element) {
  return block_of(stream, element / 4)[element % 4];
}

float uniform(const RandomStream& stream, uint64_t element) {
  return static_cast<float>(random_bits(stream, element) >> 8) * 0x1p-24f;
}

void fill_normal(const RandomStream& stream, uint64_t first_element, float deviation, std::span<float> out) {
  for (size_t done = 0; done < out.size();) {
    const uint64_t element = first_element + done;
    const std::array<float, 4> values = normals_of(block_of(stream, element / 4));
    for (uint64_t lane = element % 4; lane < 4 && done < out.size(); ++lane, ++done) {
      out[done] = deviation * values[lane];
    }
  }
}

}  // namespace terrace
