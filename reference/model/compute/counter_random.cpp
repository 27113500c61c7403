#include <terrace/reference/model/compute/counter_random.h>

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

// Neither function branches on its argument: half of such branches would be mispredicted.

// The natural logarithm of a normal double, to about 1e-13: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and
// ln m = 2 atanh((m - 1) / (m + 1)).
double logarithm(double x) {
  constexpr uint64_t kHalfRootBits = std::bit_cast<uint64_t>(std::numbers::sqrt2 / 2);
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int64_t exponent = static_cast<int64_t>(bits - kHalfRootBits) >> 52;
  const double mantissa = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  const double s = (mantissa - 1.0) / (mantissa + 1.0), q = s * s;
  double series = 1.0 / 15.0;
  series = series * q + 1.0 / 13.0;
  series = series * q + 1.0 / 11.0;
  series = series * q + 1.0 / 9.0;
  series = series * q + 1.0 / 7.0;
  series = series * q + 1.0 / 5.0;
  series = series * q + 1.0 / 3.0;
  series = series * q + 1.0;
  return static_cast<double>(exponent) * std::numbers::ln2 + 2.0 * s * series;
}

struct Turned {
  double sine, cosine;
};

// Sine and cosine of a whole turn times `turns` in [0, 1), to about 1e-10: the Taylor series around the
// nearest quarter turn, then the quarter's exchange and signs.
Turned turn(double turns) {
  const double quarters = turns * 4.0;
  const uint64_t quarter = static_cast<uint64_t>(static_cast<int64_t>(quarters + 0.5));
  const double x = (quarters - static_cast<double>(static_cast<int64_t>(quarter))) * (std::numbers::pi / 2.0);
  const double q = x * x;
  double sine = -1.0 / 39916800.0;
  sine = sine * q + 1.0 / 362880.0;
  sine = sine * q - 1.0 / 5040.0;
  sine = sine * q + 1.0 / 120.0;
  sine = sine * q - 1.0 / 6.0;
  sine = (sine * q + 1.0) * x;
  double cosine = 1.0 / 479001600.0;
  cosine = cosine * q - 1.0 / 3628800.0;
  cosine = cosine * q + 1.0 / 40320.0;
  cosine = cosine * q - 1.0 / 720.0;
  cosine = cosine * q + 1.0 / 24.0;
  cosine = cosine * q - 1.0 / 2.0;
  cosine = cosine * q + 1.0;
  const uint64_t sine_bits = std::bit_cast<uint64_t>(sine), cosine_bits = std::bit_cast<uint64_t>(cosine);
  const uint64_t exchange = (sine_bits ^ cosine_bits) & (uint64_t{0} - (quarter & 1));
  const uint64_t sine_sign = (quarter & 2) << 62, cosine_sign = ((quarter + 1) & 2) << 62;
  return {std::bit_cast<double>(sine_bits ^ exchange ^ sine_sign),
          std::bit_cast<double>(cosine_bits ^ exchange ^ cosine_sign)};
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
