// Moments as codes with AVX2 and AVX-512, bit for bit as moment_codes.cpp. How this file is compiled:
// internal/vectors-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/moment_codes_simd.cpp"
#include <terrace/optimizer_cpu/internal/vectors-inl.h>
// They come behind vectors-inl.h.
#include <terrace/optimizer_cpu/internal/moment_kernels.h>
#include <terrace/optimizer_cpu/internal/moment_vectors-inl.h>

#include <algorithm>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

template <size_t kMoments, typename Rounding>
HWY_NOINLINE HWY_ATTR void encode_typed(std::array<const float*, 2> values, size_t count,
                                        const Chance& chance, std::array<std::byte*, 2> codes) {
  constexpr size_t kAtOnce = kBlocksAtOnce * kMomentBlock;
  Numbers<kMoments> numbers;
  std::fill_n(numbers.largest, kMoments * kBlocksAtOnce, hn::Zero(Words()));
  for (size_t begin = 0; begin < count; begin += kAtOnce) {
    const size_t blocks = std::min(kAtOnce, count - begin) / kMomentBlock;
    for (size_t m = 0; m < kMoments; ++m) {
      for (size_t b = 0; b < blocks; ++b) {
        auto largest = hn::Zero(Words());
        for (size_t i = b * kMomentBlock; i < (b + 1) * kMomentBlock; i += kPair) {
          Pair pair = load_pair(values[m] + begin + i);
          if (m > 0) pair = {hn::Abs(pair.lower), hn::Abs(pair.upper)};
          largest = hn::Max(largest, hn::Max(magnitude_of(pair.lower), magnitude_of(pair.upper)));
          hn::Store(pair.lower, Floats(), numbers.values[m] + i);
          hn::Store(pair.upper, Floats(), numbers.values[m] + i + kVector);
        }
        numbers.largest[b * kMoments + m] = largest;
      }
    }
    for (size_t b = 0; b < blocks; ++b) numbers.draw(chance, begin + b * kMomentBlock, b);
    encode_blocks_at_once<kMoments, Rounding>(numbers, blocks,
                                              {codes[0] + begin, kMoments > 1 ? codes[1] + begin : nullptr});
  }
}

HWY_ATTR void encode(std::array<const float*, 2> values, size_t count, const Chance* chance,
                     std::array<std::byte*, 2> codes) {
  const bool is_alone = codes[1] == nullptr;
  if (chance != nullptr) {
    if (is_alone) return encode_typed<1, AtRandom>(values, count, *chance, codes);
    return encode_typed<2, AtRandom>(values, count, *chance, codes);
  }
  if (is_alone) return encode_typed<1, Nearest>(values, count, {}, codes);
  encode_typed<2, Nearest>(values, count, {}, codes);
}

template <size_t kMoments>
HWY_INLINE HWY_ATTR void decode_typed(std::array<const std::byte*, 2> codes, size_t count,
                                      std::array<float*, 2> values) {
  using M = std::conditional_t<kMoments == 1, Alone, First>;
  for (size_t first = 0; first < count; first += kMomentBlock) {
    const BlockScales<kMoments> scales(top_bits(codes[kMoments - 1] + first));
    for (size_t i = first; i < first + kMomentBlock; i += kPair) {
      store_pair(M::decode(codes[0] + i, scales.of[0]), values[0] + i);
      if constexpr (kMoments > 1) store_pair(Second::decode(codes[1] + i, scales.of[1]), values[1] + i);
    }
  }
}

HWY_ATTR void decode(std::array<const std::byte*, 2> codes, size_t count, std::array<float*, 2> values) {
  if (codes[1] == nullptr) return decode_typed<1>(codes, count, values);
  decode_typed<2>(codes, count, values);
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
