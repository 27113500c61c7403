// Moments as codes of one byte (MomentType::int8). They are free functions over blocks, without threads, and
// give the same bits on every instruction set. Those of single values alone allocate memory.
//
// A block is 64 neighbours of the flat space, where tensors are aligned to as many, so no block holds numbers
// of two tensors. A code has a magnitude of 7 bits, beside another moment, or of 6, of a moment that is
// alone. With L = 127 levels and a step of 2^20 units in the last place, or L = 63 and 2^21,
//
//   bits(low) = bits(1.0) - L * step           2^-16 * 1.125, or 2^-16 * 1.25
//   scale     = largest magnitude of the block / (1 - low), cut to 17 bits behind the leading one; 0 if that
//               is below 2^-120, and NaN if a number of the block is not finite
//   inverse   = 1 / scale, and 12 units in the last place more, so that the largest number becomes at least 1
//   y         = magnitude * inverse + low, from low to 1
//   code      = (bits(y) - bits(low) + r) / step, rounded down, at most L
//   value     = (float(bits(low) + code * step) - low) * scale, with the number's sign
//
// each operation in fp32, rounded once. The bits of a float grow as its logarithm does: a code is one of 8
// (or of 4) equal steps in every power of two, over sixteen powers of two, and below them steps are equal.
// That is about the resolution of the dynamic map of Dettmers et al., arXiv:2110.02861, figure 2, without a
// table. Codes of a block whose scale is 0 or NaN are 0.
//
// An update rounds up or down at random, so that a moment that changes by less than a step moves on average
// as in fp32: r is uniform in [0, step). It is made of the step, the tensor's number, the element's place in
// the tensor and the moment alone (kernels::random_of()). So no placement, order, number of threads or of
// ranks changes it. A block has two random numbers a and b of 32 bits for each moment, and r is the upper
// bits of a + b * lane. That is multiply-shift hashing (Dietzfelbinger, STACS 1996): for 64 lanes and up to
// 27 upper bits, each r is uniform, and each two of a block are independent. Elsewhere (a checkpoint is read,
// a value is written) r is half a step, which rounds to the nearest. So values that were codes become the
// same codes and the same scale again: the largest has code L always, and of a scale the bits that were cut
// are further away than any rounding.
//
// The scales lie in the highest bits of the codes, which magnitudes leave free: so a tile is whole pages. Of
// element i of a block these are bit i of a number of 64 bits, which is bits(scale) of the moment that has
// the free bits, and above it bits(scale) of the other. The two forms are
//
//   two moments   first:   [sign | magnitude: 7]
//                 second:  [bit i of the scales | magnitude: 7]     a mean of squares, which has no sign
//   one moment             [bit i of the scales | sign | magnitude: 6]
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <terrace/base/record_layout.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

inline constexpr uint64_t kMomentBlock = 64;  // elements

// By what an update rounds: the constants of its step, and the place of the first element.
struct Chance {
  uint64_t key;    // OptimizerStep::rounding_key
  uint64_t place;  // kernels::rounding_place_of(), a multiple of kMomentBlock
};

// `count` elements of whole blocks as numbers, and back; without a chance to the nearest. The second of each
// is null where there is one moment. Addresses of numbers are aligned for float; nothing overlaps.
void decode_blocks(InstructionSet set, std::array<const std::byte*, 2> codes, size_t count,
                   std::array<float*, 2> values);
void encode_blocks(InstructionSet set, std::array<const float*, 2> values, size_t count,
                   std::optional<Chance> chance, std::array<std::byte*, 2> codes);

// The same of the moments of one tile of a record whose layout has codes.
void decode_moments(InstructionSet set, const RecordLayout& layout, const std::byte* tile,
                    std::array<float*, 2> values);
void encode_moments(InstructionSet set, const RecordLayout& layout, std::array<const float*, 2> values,
                    std::byte* tile);

// The numbers of one moment in a tile, from element `first` on. The blocks of elements that are written are
// coded anew.
void read_moment_codes(const RecordLayout& layout, const std::byte* tile, uint32_t moment, uint64_t first,
                       std::span<float> values);
void write_moment_codes(const RecordLayout& layout, std::byte* tile, uint32_t moment, uint64_t first,
                        std::span<const float> values);

// The arithmetic of a block, for all kernels.
namespace kernels {

struct MomentCode {
  uint32_t magnitude_bits;
  uint32_t shift;     // a step is 1 << shift
  uint32_t low_bits;  // bits(low)

  constexpr explicit MomentCode(bool is_alone)
      : magnitude_bits(is_alone ? 6 : 7),
        shift(is_alone ? 21 : 20),
        low_bits(0x3f800000u - (levels() << shift)) {}
  constexpr uint32_t levels() const { return (1u << magnitude_bits) - 1; }
  constexpr float low() const { return std::bit_cast<float>(low_bits); }

  // The bits of the scale, from those of the largest magnitude.
  constexpr uint32_t scale_of(uint32_t largest_bits) const {
    if (largest_bits >= kInfinity) return 0x7fc00000u;
    const uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(largest_bits) / (1.0f - low()));
    const uint32_t cut = std::min((bits + kRoundings) & kScaleBits, kMostScale);
    return cut < kLeastScale ? 0 : cut;
  }
  constexpr static float inverse_of(uint32_t scale_bits) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(1.0f / std::bit_cast<float>(scale_bits)) + kSurplus);
  }
  constexpr static bool codes(uint32_t scale_bits) { return scale_bits != 0 && scale_bits < kInfinity; }
  constexpr uint32_t code_of(uint32_t magnitude, float inverse_scale, uint32_t random) const {
    const float y = std::bit_cast<float>(magnitude) * inverse_scale + low();
    return std::min((std::bit_cast<uint32_t>(y) - low_bits + random) >> shift, levels());
  }
  constexpr float value_of(uint32_t code, uint32_t sign, float scale) const {
    const float magnitude = (std::bit_cast<float>(low_bits + (code << shift)) - low()) * scale;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign << 31);
  }
  // r from a random number.
  constexpr uint32_t rounding_of(uint32_t random) const { return random >> (32 - shift); }
  constexpr uint32_t half() const { return 1u << (shift - 1); }

  static constexpr uint32_t kScaleBits = ~0x3fu, kMostScale = 0x7f7fffc0u;
  static constexpr uint32_t kLeastScale = 0x03800000u;  // 2^-120
  static constexpr uint32_t kInfinity = 0x7f800000u;
  // In units in the last place. The surplus makes up for what the largest number of a block loses: 4.5 of a
  // scale that was rounded up, which are up to 9 of a number above it, and half a unit in each of four
  // operations.
  static constexpr uint32_t kRoundings = 4, kSurplus = 12;
};

// The random numbers of a step. The mixer is splitmix64 of Steele, Lea and Flood, OOPSLA 2014.
constexpr uint64_t mixed(uint64_t bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
  return bits ^ bits >> 31;
}
constexpr uint64_t rounding_key_of(uint64_t step) {
  return mixed(step + 0x9e3779b97f4a7c15u);
}
// The place of an element by which it is rounded, from the tensor's number. It is never 0.
constexpr uint64_t rounding_place_of(uint64_t tensor, uint64_t element) {
  return ((tensor + 1) << 40) + element;
}
// The two random numbers of a block for one moment: a + b * 2^32. `block` is the rounding place of its first
// element by kMomentBlock. Those of the second moment are others of the same hash, as near to uniform.
constexpr uint64_t random_of_block(uint64_t rounding_key, uint64_t block) {
  return mixed(rounding_key + block * 0x9e3779b97f4a7c15u);
}
constexpr uint64_t random_of_second(uint64_t block_random) {
  return (block_random ^ block_random >> 32) * 0xd1342543de82ef95u;
}
// `lane` is the element's place in its block.
constexpr uint32_t random_of(uint64_t block_random, uint32_t lane) {
  return static_cast<uint32_t>(block_random) + static_cast<uint32_t>(block_random >> 32) * lane;
}

}  // namespace kernels
}  // namespace terrace
