// Moments as codes with AVX2 and AVX-512, bit for bit as moment_codes.cpp. How this file is compiled:
// internal/vectors-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/moment_codes_simd.cpp"
#include <terrace/optimizer_cpu/internal/vectors-inl.h>

#include <terrace/optimizer_cpu/internal/moment_kernels.h>
#include <terrace/optimizer_cpu/moment_codes.h>

#include <algorithm>
#include <cstring>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

using Words = hn::Rebind<uint32_t, Floats>;
using Integers = hn::Rebind<int32_t, Floats>;
using Bytes = hn::Rebind<uint8_t, Floats>;
using WordVector = hn::Vec<Words>;

constexpr size_t kVector = hn::MaxLanes(Floats());
static_assert(kMomentBlock % kVector == 0 && kVector % 8 == 0);
// Blocks whose scales are found before they are coded, so that the processor divides for several at once.
constexpr size_t kBlocksAtOnce = 8;

// The highest bits of a block's codes.
HWY_INLINE HWY_ATTR uint64_t top_bits(const std::byte* codes) {
  constexpr hn::CappedTag<int8_t, kMomentBlock> d;
  uint64_t bits = 0;
  for (size_t at = 0; at < kMomentBlock; at += hn::MaxLanes(d)) {
    uint64_t part = 0;
    const auto bytes = hn::LoadU(d, reinterpret_cast<const int8_t*>(codes) + at);
    hn::StoreMaskBits(d, hn::Lt(bytes, hn::Zero(d)), reinterpret_cast<uint8_t*>(&part));
    bits |= part << at;
  }
  return bits;
}

HWY_INLINE HWY_ATTR uint32_t largest_of(const float* values) {
  auto largest = hn::Zero(Words());
  for (size_t at = 0; at < kMomentBlock; at += kVector) {
    const auto bits = hn::LoadU(Words(), reinterpret_cast<const uint32_t*>(values + at));
    largest = hn::Max(largest, hn::And(bits, hn::Set(Words(), 0x7fffffffu)));
  }
  return hn::GetLane(hn::MaxOfLanes(Words(), largest));
}

// Constants in memory, where an instruction finds them by itself; as immediates each would take two more.
struct Constants {
  uint32_t mix1 = 0x7feb352du, mix2 = 0x846ca68bu;
};

// random_of() for the elements from `at` on.
HWY_INLINE HWY_ATTR WordVector random_vector(const Constants& c, uint32_t block_random, size_t at) {
  const auto lanes = hn::Iota(Words(), static_cast<uint32_t>(at));
  auto bits = hn::Add(hn::Set(Words(), block_random), hn::Mul(lanes, hn::Set(Words(), 0x9e3779b9u)));
  bits = hn::Mul(hn::Xor(bits, hn::ShiftRight<16>(bits)), hn::Set(Words(), c.mix1));
  bits = hn::Mul(hn::Xor(bits, hn::ShiftRight<15>(bits)), hn::Set(Words(), c.mix2));
  return hn::Xor(bits, hn::ShiftRight<16>(bits));
}

HWY_INLINE HWY_ATTR void store_codes(WordVector codes, std::byte* to) {
  const auto bytes = hn::DemoteTo(Bytes(), hn::BitCast(Integers(), codes));
  hn::StoreU(bytes, Bytes(), reinterpret_cast<uint8_t*>(to));
}
// With the highest bits, of which the lowest is that of the first code.
HWY_INLINE HWY_ATTR void store_codes(WordVector codes, const uint8_t* top, std::byte* to) {
  const auto has_bit = hn::LoadMaskBits(Words(), top);
  store_codes(hn::Or(codes, hn::IfThenElseZero(has_bit, hn::Set(Words(), 0x80u))), to);
}

// The codes of one moment. `kAlone`, `kSignBit` (8: there is none) and `kUpper` are those of
// moment_codes.cpp.
template <bool kAlone, uint32_t kSignBit, bool kUpper>
struct CodesOf {
  static constexpr MomentCode kCode{kAlone};

  static HWY_INLINE HWY_ATTR void decode(const std::byte* from, uint32_t scale_bits, float* to) {
    const auto low = hn::Set(Floats(), kCode.low());
    const auto scale = hn::Set(Floats(), std::bit_cast<float>(scale_bits));
    for (size_t at = 0; at < kMomentBlock; at += kVector) {
      const auto bytes = hn::LoadU(Bytes(), reinterpret_cast<const uint8_t*>(from) + at);
      const auto code = hn::PromoteTo(Words(), bytes);
      const auto steps = hn::ShiftLeft<kCode.shift>(hn::And(code, hn::Set(Words(), kCode.levels())));
      const auto y = hn::BitCast(Floats(), hn::Add(steps, hn::Set(Words(), kCode.low_bits)));
      auto value = hn::Mul(hn::Sub(y, low), scale);
      if constexpr (kSignBit < 8) {
        const auto sign = hn::And(hn::ShiftLeft<31 - kSignBit>(code), hn::Set(Words(), 0x80000000u));
        value = hn::Or(value, hn::BitCast(Floats(), sign));
      }
      hn::StoreU(value, Floats(), to + at);
    }
  }

  // `random` has the random numbers of the elements, if there is a chance.
  template <bool kChance>
  static HWY_INLINE HWY_ATTR WordVector encode(const float* from, float inverse_scale, WordVector random) {
    const auto bits = hn::LoadU(Words(), reinterpret_cast<const uint32_t*>(from));
    const auto magnitude = hn::BitCast(Floats(), hn::And(bits, hn::Set(Words(), 0x7fffffffu)));
    const auto y =
        hn::Add(hn::Mul(magnitude, hn::Set(Floats(), inverse_scale)), hn::Set(Floats(), kCode.low()));
    auto r = hn::Set(Words(), kCode.half());
    if constexpr (kChance) {
      r = kUpper ? hn::ShiftRight<16>(random) : hn::And(random, hn::Set(Words(), 0xffffu));
      r = hn::Or(hn::ShiftLeft<kCode.shift - 16>(r), hn::Set(Words(), (1u << (kCode.shift - 16)) - 1));
    }
    const auto above = hn::Sub(hn::BitCast(Words(), y), hn::Set(Words(), kCode.low_bits));
    auto code = hn::Min(hn::ShiftRight<kCode.shift>(hn::Add(above, r)), hn::Set(Words(), kCode.levels()));
    if constexpr (kSignBit < 8) code = hn::Or(code, hn::ShiftLeft<kSignBit>(hn::ShiftRight<31>(bits)));
    return code;
  }
};

using First = CodesOf<false, 7, true>;
using Second = CodesOf<false, 8, false>;
using Alone = CodesOf<true, 6, true>;

HWY_ATTR void decode(std::array<const std::byte*, 2> codes, size_t count, std::array<float*, 2> values) {
  for (size_t first = 0; first < count; first += kMomentBlock) {
    const std::byte* const at = codes[0] + first;
    if (codes[1] == nullptr) {
      Alone::decode(at, static_cast<uint32_t>(top_bits(at)), values[0] + first);
      continue;
    }
    const uint64_t scales = top_bits(codes[1] + first);
    First::decode(at, static_cast<uint32_t>(scales >> 32), values[0] + first);
    Second::decode(codes[1] + first, static_cast<uint32_t>(scales), values[1] + first);
  }
}

// The scales of the blocks of one moment, and what their numbers are multiplied by.
struct Scales {
  std::array<uint32_t, kBlocksAtOnce> bits{};
  std::array<float, kBlocksAtOnce> inverse;

  HWY_INLINE HWY_ATTR Scales(const MomentCode& code, const float* values, size_t blocks) {
    for (size_t b = 0; b < blocks; ++b) bits[b] = code.scale_of(largest_of(values + b * kMomentBlock));
    for (size_t b = 0; b < blocks; ++b) inverse[b] = 1.0f / std::bit_cast<float>(bits[b]);
  }
  bool has_codes(size_t block) const { return MomentCode::codes(bits[block]); }
};

template <bool kAlone, bool kChance>
HWY_INLINE HWY_ATTR void encode_block(const Constants& c, std::array<const float*, 2> values, const Scales& m,
                                      const Scales& v, size_t block, uint32_t block_random,
                                      std::array<std::byte*, 2> codes) {
  using M = std::conditional_t<kAlone, Alone, First>;
  const uint64_t scales = kAlone ? uint64_t{m.bits[block]} : uint64_t{m.bits[block]} << 32 | v.bits[block];
  uint8_t top[sizeof(scales)];
  std::memcpy(top, &scales, sizeof(top));
  const auto none = hn::Zero(Words());
#pragma GCC unroll 8
  for (size_t at = 0; at < kMomentBlock; at += kVector) {
    auto random = none;
    if constexpr (kChance) random = random_vector(c, block_random, at);
    const auto first =
        m.has_codes(block) ? M::template encode<kChance>(values[0] + at, m.inverse[block], random) : none;
    if constexpr (kAlone) {
      store_codes(first, top + at / 8, codes[0] + at);
    } else {
      store_codes(first, codes[0] + at);
      const auto second = v.has_codes(block)
                              ? Second::template encode<kChance>(values[1] + at, v.inverse[block], random)
                              : none;
      store_codes(second, top + at / 8, codes[1] + at);
    }
  }
}

template <bool kAlone, bool kChance>
HWY_NOINLINE HWY_ATTR void encode_typed(const Constants& c, std::array<const float*, 2> values, size_t count,
                                        const Chance* chance, std::array<std::byte*, 2> codes) {
  constexpr size_t kAtOnce = kBlocksAtOnce * kMomentBlock;
  for (size_t begin = 0; begin < count; begin += kAtOnce) {
    const size_t blocks = std::min(kAtOnce, count - begin) / kMomentBlock;
    const Scales m(MomentCode{kAlone}, values[0] + begin, blocks);
    const Scales v(MomentCode{false}, kAlone ? values[0] + begin : values[1] + begin, kAlone ? 0 : blocks);
    for (size_t b = 0; b < blocks; ++b) {
      const size_t first = begin + b * kMomentBlock;
      uint32_t random = 0;
      if constexpr (kChance) random = random_of_block(chance->key, (chance->place + first) / kMomentBlock);
      encode_block<kAlone, kChance>(c, {values[0] + first, kAlone ? nullptr : values[1] + first}, m, v, b,
                                    random, {codes[0] + first, kAlone ? nullptr : codes[1] + first});
    }
  }
}

HWY_ATTR void encode(std::array<const float*, 2> values, size_t count, const Chance* chance,
                     std::array<std::byte*, 2> codes) {
  const Constants c;
  if (codes[1] == nullptr) {
    if (chance != nullptr) return encode_typed<true, true>(c, values, count, chance, codes);
    return encode_typed<true, false>(c, values, count, chance, codes);
  }
  if (chance != nullptr) return encode_typed<false, true>(c, values, count, chance, codes);
  encode_typed<false, false>(c, values, count, chance, codes);
}

const MomentKernels kMoments = {.decode = decode, .encode = encode};

}  // namespace
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace terrace::kernels {

const MomentKernels* find_vector_moment_kernels(InstructionSet set) {
  return TERRACE_VECTOR_TABLE(set, kMoments);
}

}  // namespace terrace::kernels
#endif
