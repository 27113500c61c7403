// Random numbers as a pure function of (seed, stream, element). They are the same in any order, on any
// thread, cut into any pieces, and on every machine, since they use no library function whose last bit may
// differ. The bits are Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace terrace {

// One of 2^64 independent sequences of a seed, for example one per tensor.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

// The block cipher itself: 128 random bits for a counter and a key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Returns 32 uniform bits for each element; four elements share a block.
uint32_t random_bits(const RandomStream& stream, uint64_t element);
// Returns a multiple of 2^-24 in [0, 1).
float uniform(const RandomStream& stream, uint64_t element);
// out[i] = deviation * the standard normal value of element first_element + i.
void fill_normal(const RandomStream& stream, uint64_t first_element, float deviation, std::span<float> out);

}  // namespace terrace
