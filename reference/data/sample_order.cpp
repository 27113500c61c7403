#include <terrace/reference/data/sample_order.h>

#include <algorithm>
#include <bit>

#include <terrace/base/assert.h>
#include <terrace/reference/model/compute/counter_random.h>

namespace terrace {
namespace {

// Tells the random numbers of the data from those of the weights, which may have the same seed.
constexpr uint64_t kDataStream = 0x6461'7461'206f'7264;  // "data ord"
// An even number of rounds, so that each half is mixed equally often. Four make a permutation that is hard to
// tell from a random one when the halves are large (Luby and Rackoff, 1988); small halves need more.
constexpr uint32_t kRounds = 8;

constexpr uint64_t mask(uint32_t bits) {
  return (uint64_t{1} << bits) - 1;  // each half has at most 32 bits
}

}  // namespace

SampleOrder::SampleOrder(uint64_t seed, uint64_t sample_count)
    : seed_(seed ^ kDataStream), sample_count_(sample_count) {
  TERRACE_ASSERT(sample_count > 0, "an order of no samples");
  const auto bits = std::max(2u, static_cast<uint32_t>(std::bit_width(sample_count - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

uint64_t SampleOrder::at(uint64_t sample_number) const {
  const uint64_t epoch = epoch_of(sample_number);
  uint64_t index = sample_number % sample_count_;
  // The permutation of the larger set, applied until it comes back into the smaller one: again a permutation,
  // and two applications on average at most.
  do {
    index = permuted(index, epoch);
  } while (index >= sample_count_);
  return index;
}

// A Feistel network: each round changes one half by what a random function makes of the other, which can be
// undone whatever that function is.
uint64_t SampleOrder::permuted(uint64_t index, uint64_t epoch) const {
  uint64_t high = index >> low_bits_;
  uint64_t low = index & mask(low_bits_);
  const auto random = [&](uint64_t half, uint32_t round) -> uint64_t {
    return philox4x32({static_cast<uint32_t>(half), round, static_cast<uint32_t>(epoch),
                       static_cast<uint32_t>(epoch >> 32)},
                      {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)})[0];
  };
  for (uint32_t round = 0; round < kRounds; round += 2) {
    high ^= random(low, round) & mask(high_bits_);
    low ^= random(high, round + 1) & mask(low_bits_);
  }
  return high << low_bits_ | low;
}

}  // namespace terrace
