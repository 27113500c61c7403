// Blocks of moments as codes, in vectors, bit for bit as moment_codes.cpp. It is included behind
// vectors-inl.h, once per target as that one is.
//
// The numbers of a block come and go in pairs of vectors, whose order is that of instructions which widen and
// narrow inside of 128 bits: of each eight neighbours the lower vector has the first four, and the upper one
// the other four. Nothing is ever moved across, as every stream of an update has this order.
#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/optimizer_cpu/update_kernels.h>

#if defined(TERRACE_OPTIMIZER_CPU_MOMENT_VECTORS) == \
    defined(HWY_TARGET_TOGGLE)  // include guard, once per target
#ifdef TERRACE_OPTIMIZER_CPU_MOMENT_VECTORS
#undef TERRACE_OPTIMIZER_CPU_MOMENT_VECTORS
#else
#define TERRACE_OPTIMIZER_CPU_MOMENT_VECTORS
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

using Words = hn::Repartition<uint32_t, Floats>;
using Integers = hn::Repartition<int32_t, Floats>;
using Halves = hn::Repartition<uint16_t, Floats>;
using SignedHalves = hn::Repartition<int16_t, Floats>;
using Bytes = hn::Repartition<uint8_t, Floats>;
using WordVector = hn::Vec<Words>;
using HalfVector = hn::Vec<Halves>;
using ByteVector = hn::Vec<Bytes>;

constexpr size_t kVector = hn::MaxLanes(Floats());
constexpr size_t kPair = 2 * kVector;   // elements of a vector of Halves
constexpr size_t kBytes = 4 * kVector;  // elements of a vector of Bytes
static_assert(kMomentBlock % kBytes == 0);
// Blocks whose scales are found before they are coded, so that the processor divides for all at once.
constexpr size_t kBlocksAtOnce = 16;
constexpr size_t kMostScales = 2 * kBlocksAtOnce;
static_assert(kMostScales % kVector == 0);

struct Pair {
  FloatVector lower, upper;
};

// What Highway has no words for: packs of two vectors, each 128 bits for themselves, and the way from the
// order of memory to that of pairs and back.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE HWY_ATTR HalfVector packed(WordVector lower, WordVector upper) {
  return HalfVector{_mm512_packus_epi32(lower.raw, upper.raw)};
}
HWY_INLINE HWY_ATTR HalfVector lower_halves(WordVector lower, WordVector upper) {
  alignas(64) static constexpr uint16_t kAt[32] = {0,  2,  4,  6,  32, 34, 36, 38, 8,  10, 12,
                                                   14, 40, 42, 44, 46, 16, 18, 20, 22, 48, 50,
                                                   52, 54, 24, 26, 28, 30, 56, 58, 60, 62};
  return HalfVector{_mm512_permutex2var_epi16(lower.raw, _mm512_load_si512(kAt), upper.raw)};
}
HWY_INLINE HWY_ATTR HalfVector upper_halves(WordVector lower, WordVector upper) {
  alignas(64) static constexpr uint16_t kAt[32] = {1,  3,  5,  7,  33, 35, 37, 39, 9,  11, 13,
                                                   15, 41, 43, 45, 47, 17, 19, 21, 23, 49, 51,
                                                   53, 55, 25, 27, 29, 31, 57, 59, 61, 63};
  return HalfVector{_mm512_permutex2var_epi16(lower.raw, _mm512_load_si512(kAt), upper.raw)};
}
HWY_INLINE HWY_ATTR HalfVector packed_signs(WordVector lower, WordVector upper) {
  return HalfVector{_mm512_packs_epi32(lower.raw, upper.raw)};
}
HWY_INLINE HWY_ATTR ByteVector packed(HalfVector first, HalfVector second) {
  return ByteVector{_mm512_packus_epi16(first.raw, second.raw)};
}
HWY_INLINE HWY_ATTR ByteVector packed_signs(HalfVector first, HalfVector second) {
  return ByteVector{_mm512_packs_epi16(first.raw, second.raw)};
}
// Of packed bytes, the order of memory.
HWY_INLINE HWY_ATTR ByteVector in_order(ByteVector bytes) {
  return ByteVector{_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes.raw)};
}
HWY_INLINE HWY_ATTR Pair load_pair(const float* from) {
  const __m512 first = _mm512_loadu_ps(from), second = _mm512_loadu_ps(from + kVector);
  return {FloatVector{_mm512_shuffle_f32x4(first, second, 0x88)},
          FloatVector{_mm512_shuffle_f32x4(first, second, 0xdd)}};
}
HWY_INLINE HWY_ATTR void store_pair(const Pair& pair, float* to) {
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512d lower = _mm512_castps_pd(pair.lower.raw), upper = _mm512_castps_pd(pair.upper.raw);
  _mm512_storeu_pd(to, _mm512_permutex2var_pd(lower, first, upper));
  _mm512_storeu_pd(to + kVector, _mm512_permutex2var_pd(lower, second, upper));
}
#else
HWY_INLINE HWY_ATTR HalfVector packed(WordVector lower, WordVector upper) {
  return HalfVector{_mm256_packus_epi32(lower.raw, upper.raw)};
}
HWY_INLINE HWY_ATTR HalfVector lower_halves(WordVector lower, WordVector upper) {
  const auto half = hn::Set(Words(), 0xffffu);
  return packed(hn::And(lower, half), hn::And(upper, half));
}
HWY_INLINE HWY_ATTR HalfVector upper_halves(WordVector lower, WordVector upper) {
  return packed(hn::ShiftRight<16>(lower), hn::ShiftRight<16>(upper));
}
HWY_INLINE HWY_ATTR HalfVector packed_signs(WordVector lower, WordVector upper) {
  return HalfVector{_mm256_packs_epi32(lower.raw, upper.raw)};
}
HWY_INLINE HWY_ATTR ByteVector packed(HalfVector first, HalfVector second) {
  return ByteVector{_mm256_packus_epi16(first.raw, second.raw)};
}
HWY_INLINE HWY_ATTR ByteVector packed_signs(HalfVector first, HalfVector second) {
  return ByteVector{_mm256_packs_epi16(first.raw, second.raw)};
}
HWY_INLINE HWY_ATTR ByteVector in_order(ByteVector bytes) {
  return ByteVector{_mm256_permute4x64_epi64(bytes.raw, 0xd8)};
}
HWY_INLINE HWY_ATTR Pair load_pair(const float* from) {
  const auto first = hn::LoadU(Floats(), from), second = hn::LoadU(Floats(), from + kVector);
  return {hn::ConcatLowerLower(Floats(), second, first), hn::ConcatUpperUpper(Floats(), second, first)};
}
HWY_INLINE HWY_ATTR void store_pair(const Pair& pair, float* to) {
  hn::StoreU(hn::ConcatLowerLower(Floats(), pair.upper, pair.lower), Floats(), to);
  hn::StoreU(hn::ConcatUpperUpper(Floats(), pair.upper, pair.lower), Floats(), to + kVector);
}
#endif

HWY_INLINE HWY_ATTR WordVector bits_of(FloatVector values) {
  return hn::BitCast(Words(), values);
}
HWY_INLINE HWY_ATTR WordVector magnitude_of(FloatVector values) {
  return hn::And(bits_of(values), hn::Set(Words(), 0x7fffffffu));
}
HWY_INLINE HWY_ATTR HalfVector load_halves(const std::byte* from) {
  return hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(from));
}
// The words with these upper and lower halves.
HWY_INLINE HWY_ATTR Pair widened(HalfVector lower_halves, HalfVector upper_halves) {
  return {hn::BitCast(Floats(), hn::InterleaveLower(Halves(), lower_halves, upper_halves)),
          hn::BitCast(Floats(), hn::InterleaveUpper(Halves(), lower_halves, upper_halves))};
}

// The highest bits of a block's codes.
HWY_INLINE HWY_ATTR uint64_t top_bits(const std::byte* codes) {
  constexpr hn::Repartition<int8_t, Floats> d;
  uint64_t bits = 0;
  for (size_t at = 0; at < kMomentBlock; at += kBytes) {
    uint64_t part = 0;
    const auto bytes = hn::LoadU(d, reinterpret_cast<const int8_t*>(codes) + at);
    hn::StoreMaskBits(d, hn::Lt(bytes, hn::Zero(d)), reinterpret_cast<uint8_t*>(&part));
    bits |= part << at;
  }
  return bits;
}

// How the numbers of a block are rounded to codes: r for the vectors of one pair after the other.
struct Nearest {
  explicit Nearest(uint64_t /*block_random*/) {}
  template <uint32_t kShift>
  HWY_INLINE HWY_ATTR WordVector lower() const {
    return hn::Set(Words(), 1u << (kShift - 1));
  }
  template <uint32_t kShift>
  HWY_INLINE HWY_ATTR WordVector upper() const {
    return lower<kShift>();
  }
  void advance() {}
};
struct AtRandom {
  WordVector next, of_four, of_pair;
  HWY_INLINE HWY_ATTR explicit AtRandom(uint64_t block_random) {
    const auto lanes = hn::InterleaveLower(Halves(), hn::Iota(Halves(), 0), hn::Zero(Halves()));
    const auto of_lane = hn::Set(Words(), static_cast<uint32_t>(block_random >> 32));
    next = hn::Add(hn::Set(Words(), static_cast<uint32_t>(block_random)),
                   hn::Mul(hn::BitCast(Words(), lanes), of_lane));
    of_four = hn::ShiftLeft<2>(of_lane);
    of_pair = hn::ShiftLeft < kVector == 16 ? 5 : 4 > (of_lane);
  }
  template <uint32_t kShift>
  HWY_INLINE HWY_ATTR WordVector lower() const {
    return hn::ShiftRight<32 - kShift>(next);
  }
  template <uint32_t kShift>
  HWY_INLINE HWY_ATTR WordVector upper() const {
    return hn::ShiftRight<32 - kShift>(hn::Add(next, of_four));
  }
  HWY_INLINE HWY_ATTR void advance() { next = hn::Add(next, of_pair); }
};

// The codes of one moment. `kAlone` and `kSignBit` (8: there is none) are those of moment_codes.cpp.
template <bool kAlone, uint32_t kSignBit>
struct CodesOf {
  static constexpr MomentCode kCode{kAlone};
  static constexpr bool kSigned = kSignBit < 8;
  static_assert(kCode.low_bits % (1u << kCode.shift) == 0 && kCode.shift >= 16);

  static HWY_INLINE HWY_ATTR FloatVector value_of(FloatVector y, FloatVector scale) {
    const auto low = hn::Set(Floats(), kCode.low());
    if constexpr (!kSigned) return hn::Mul(hn::Sub(y, low), scale);
    const auto sign = hn::BitCast(Floats(), hn::Set(Words(), 0x80000000u));
    return hn::OrAnd(hn::Mul(hn::Sub(hn::AndNot(sign, y), low), scale), y, sign);
  }
  static HWY_INLINE HWY_ATTR Pair decode(const std::byte* from, FloatVector scale) {
    constexpr hn::Rebind<uint8_t, Halves> d;
    const auto code = hn::PromoteTo(Halves(), hn::LoadU(d, reinterpret_cast<const uint8_t*>(from)));
    const auto levels = hn::Set(Halves(), static_cast<uint16_t>(kCode.levels() << (kCode.shift - 16)));
    auto y = hn::Add(hn::And(hn::ShiftLeft<kCode.shift - 16>(code), levels),
                     hn::Set(Halves(), static_cast<uint16_t>(kCode.low_bits >> 16)));
    if constexpr (kSigned)
      y = hn::OrAnd(y, hn::ShiftLeft<15 - kSignBit>(code), hn::Set(Halves(), uint16_t{0x8000}));
    const Pair pair = widened(hn::Zero(Halves()), y);
    return {value_of(pair.lower, scale), value_of(pair.upper, scale)};
  }

  // Codes that count from bits(0) on.
  static HWY_INLINE HWY_ATTR WordVector code_of(FloatVector value, FloatVector inverse, WordVector rounding) {
    const auto magnitude = kSigned ? hn::BitCast(Floats(), magnitude_of(value)) : value;
    const auto y = hn::Add(hn::Mul(magnitude, inverse), hn::Set(Floats(), kCode.low()));
    return hn::ShiftRight<kCode.shift>(hn::Add(bits_of(y), rounding));
  }
  // kBytes numbers, which are pairs. `kept` is all ones, or 0 where the scale has no codes.
  template <typename Rounding>
  static HWY_INLINE HWY_ATTR ByteVector encode(const float* from, FloatVector inverse, ByteVector kept,
                                               Rounding& rounding) {
    const auto low = hn::Set(Halves(), static_cast<uint16_t>(kCode.low_bits >> kCode.shift));
    HalfVector codes[2], signs[2];
#pragma GCC unroll 2
    for (size_t k = 0; k < 2; ++k) {
      const auto lower = hn::Load(Floats(), from + k * kPair);
      const auto upper = hn::Load(Floats(), from + k * kPair + kVector);
      codes[k] = hn::Sub(packed(code_of(lower, inverse, rounding.template lower<kCode.shift>()),
                                code_of(upper, inverse, rounding.template upper<kCode.shift>())),
                         low);
      if constexpr (kSigned) signs[k] = packed_signs(bits_of(lower), bits_of(upper));
      rounding.advance();
    }
    auto bytes = hn::Min(packed(codes[0], codes[1]), hn::Set(Bytes(), uint8_t{kCode.levels()}));
    if constexpr (kSigned) {
      auto sign = packed_signs(signs[0], signs[1]);
      if constexpr (kSignBit < 7)
        sign = hn::BitCast(Bytes(), hn::ShiftRight<7 - kSignBit>(hn::BitCast(Halves(), sign)));
      bytes = hn::OrAnd(bytes, sign, hn::Set(Bytes(), uint8_t{1u << kSignBit}));
    }
    return in_order(hn::And(bytes, kept));
  }
};

using First = CodesOf<false, 7>;
using Second = CodesOf<false, 8>;
using Alone = CodesOf<true, 6>;

// The largest of all lanes of four vectors in the four lowest lanes.
HWY_INLINE HWY_ATTR WordVector largest_of_four(const WordVector* of) {
  const auto halved = [](WordVector a, WordVector b) HWY_ATTR {
    return hn::Max(hn::InterleaveLower(Words(), a, b), hn::InterleaveUpper(Words(), a, b));
  };
  constexpr hn::Repartition<uint64_t, Floats> d;
  const auto ab = hn::BitCast(d, halved(of[0], of[1])), cd = hn::BitCast(d, halved(of[2], of[3]));
  auto largest = hn::Max(hn::BitCast(Words(), hn::InterleaveLower(d, ab, cd)),
                         hn::BitCast(Words(), hn::InterleaveUpper(d, ab, cd)));
  if constexpr (kVector > 8) largest = hn::Max(largest, hn::ReverseBlocks(Words(), largest));
  return hn::Max(largest, hn::SwapAdjacentBlocks(largest));
}

// The scales of up to kBlocksAtOnce blocks of kMoments moments: those of block b are at b * kMoments.
template <size_t kMoments>
class Scales {
 public:
  // The numbers of `largest` are one vector of each block and moment.
  HWY_INLINE HWY_ATTR void find(const WordVector* largest, size_t blocks) {
    for (size_t i = 0; i < blocks * kMoments; i += 4)
      hn::StoreU(largest_of_four(largest + i), Words(), bits_ + i);
    constexpr MomentCode code{kMoments == 1};
    for (size_t i = 0; i < kBlocksAtOnce * kMoments; i += kVector) {
      const auto of = hn::Load(Words(), bits_ + i);
      const auto scale = hn::Div(hn::BitCast(Floats(), of), hn::Set(Floats(), 1.0f - code.low()));
      auto cut = hn::And(hn::Add(bits_of(scale), hn::Set(Words(), MomentCode::kRoundings)),
                         hn::Set(Words(), MomentCode::kScaleBits));
      cut = hn::Min(cut, hn::Set(Words(), MomentCode::kMostScale));
      cut = hn::IfThenZeroElse(hn::Lt(cut, hn::Set(Words(), MomentCode::kLeastScale)), cut);
      cut = hn::IfThenElse(hn::Gt(of, hn::Set(Words(), MomentCode::kInfinity - 1)),
                           hn::Set(Words(), kCanonicalNan), cut);
      const auto inverse = hn::Div(hn::Set(Floats(), 1.0f), hn::BitCast(Floats(), cut));
      hn::Store(cut, Words(), bits_ + i);
      const auto has_codes =
          hn::And(hn::Gt(cut, hn::Zero(Words())), hn::Lt(cut, hn::Set(Words(), MomentCode::kInfinity)));
      hn::Store(hn::IfThenElseZero(has_codes, hn::Set(Words(), 0xffffffffu)), Words(), kept_ + i);
      hn::Store(hn::Add(bits_of(inverse), hn::Set(Words(), MomentCode::kSurplus)), Words(), inverse_ + i);
    }
  }
  uint32_t bits(size_t block, size_t moment) const { return bits_[block * kMoments + moment]; }
  HWY_INLINE HWY_ATTR FloatVector inverse(size_t block, size_t moment) const {
    return hn::BitCast(Floats(), hn::Set(Words(), inverse_[block * kMoments + moment]));
  }
  HWY_INLINE HWY_ATTR ByteVector kept(size_t block, size_t moment) const {
    return hn::BitCast(Bytes(), hn::Set(Words(), kept_[block * kMoments + moment]));
  }

 private:
  alignas(64) uint32_t bits_[kMostScales + kVector] = {};
  alignas(64) uint32_t inverse_[kMostScales], kept_[kMostScales];
};

// The numbers of up to kBlocksAtOnce blocks on their way between an update and their codes: pairs of vectors.
template <size_t kMoments>
struct Numbers {
  alignas(64) float values[kMoments][kBlocksAtOnce * kMomentBlock];
  WordVector largest[kMoments * kBlocksAtOnce];  // by block and moment, a vector each
  uint64_t scales[kBlocksAtOnce];                // of the codes that they come from
  uint64_t randoms[kBlocksAtOnce][2];            // of both moments

  void draw(const Chance& chance, size_t place, size_t block) {
    randoms[block][0] = random_of_block(chance.key, (chance.place + place) / kMomentBlock);
    randoms[block][1] = random_of_second(randoms[block][0]);
  }
};

HWY_INLINE HWY_ATTR ByteVector with_top_bits(ByteVector codes, const uint8_t* top) {
  const auto has_bit = hn::LoadMaskBits(Bytes(), top);
  return hn::Or(codes, hn::IfThenElseZero(has_bit, hn::Set(Bytes(), uint8_t{0x80})));
}

template <size_t kMoments, typename Rounding>
HWY_INLINE HWY_ATTR void encode_block(const Numbers<kMoments>& numbers, const Scales<kMoments>& scales,
                                      size_t block, std::array<std::byte*, 2> codes) {
  using M = std::conditional_t<kMoments == 1, Alone, First>;
  const uint64_t bits = kMoments == 1 ? uint64_t{scales.bits(block, 0)}
                                      : uint64_t{scales.bits(block, 0)} << 32 | scales.bits(block, 1);
  uint8_t top[sizeof(bits)];
  std::memcpy(top, &bits, sizeof(top));
  Rounding rounding[2] = {Rounding(numbers.randoms[block][0]), Rounding(numbers.randoms[block][1])};
  for (size_t at = 0; at < kMomentBlock; at += kBytes) {
    const size_t from = block * kMomentBlock + at;
    auto first =
        M::encode(numbers.values[0] + from, scales.inverse(block, 0), scales.kept(block, 0), rounding[0]);
    if constexpr (kMoments == 1) {
      first = with_top_bits(first, top + at / 8);
    } else {
      const auto second = Second::encode(numbers.values[1] + from, scales.inverse(block, 1),
                                         scales.kept(block, 1), rounding[1]);
      hn::StoreU(with_top_bits(second, top + at / 8), Bytes(), reinterpret_cast<uint8_t*>(codes[1] + at));
    }
    hn::StoreU(first, Bytes(), reinterpret_cast<uint8_t*>(codes[0] + at));
  }
}

// Codes the numbers of `blocks` blocks.
template <size_t kMoments, typename Rounding>
HWY_INLINE HWY_ATTR void encode_blocks_at_once(const Numbers<kMoments>& numbers, size_t blocks,
                                               std::array<std::byte*, 2> codes) {
  Scales<kMoments> scales;
  scales.find(numbers.largest, blocks);
  for (size_t b = 0; b < blocks; ++b) {
    encode_block<kMoments, Rounding>(numbers, scales, b, codes);
    for (size_t m = 0; m < kMoments; ++m) codes[m] += kMomentBlock;
  }
}

// A block's scales, from the highest bits of its codes.
template <size_t kMoments>
struct BlockScales {
  FloatVector of[kMoments];

  HWY_INLINE HWY_ATTR explicit BlockScales(uint64_t bits) {
    of[kMoments - 1] = hn::BitCast(Floats(), hn::Set(Words(), static_cast<uint32_t>(bits)));
    if constexpr (kMoments > 1)
      of[0] = hn::BitCast(Floats(), hn::Set(Words(), static_cast<uint32_t>(bits >> 32)));
  }
};

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard
