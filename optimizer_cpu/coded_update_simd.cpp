// The update of records whose moments are codes, in one pass with AVX2 and AVX-512, bit for bit as
// moment_codes.cpp and update_scalar.cpp. How this file is compiled: internal/vectors-inl.h. It is for bf16
// gradients and parameters, which runs of such moments have.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/coded_update_simd.cpp"
#include <terrace/optimizer_cpu/internal/vectors-inl.h>
// They come behind vectors-inl.h.
#include <terrace/optimizer_cpu/internal/moment_kernels.h>
#include <terrace/optimizer_cpu/internal/moment_vectors-inl.h>
#include <terrace/optimizer_cpu/internal/rules-inl.h>

#include <algorithm>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

template <MasterForm kForm>
HWY_INLINE HWY_ATTR Pair load_masters(const UpdateRun& run, size_t i) {
  if constexpr (kForm == MasterForm::whole) return load_pair(reinterpret_cast<const float*>(run.master) + i);
  const auto below = load_halves(run.master + i * sizeof(int16_t));
  const auto borrowed = hn::BitCast(Halves(), hn::ShiftRight<15>(hn::BitCast(SignedHalves(), below)));
  return widened(below, hn::Add(load_halves(run.old_parameters + i * sizeof(Bf16)), borrowed));
}
template <MasterForm kForm>
HWY_INLINE HWY_ATTR void store_masters(const Pair& masters, const UpdateRun& run, size_t i) {
  const auto below = lower_halves(bits_of(masters.lower), bits_of(masters.upper));
  const auto above = upper_halves(bits_of(masters.lower), bits_of(masters.upper));
  if constexpr (kForm == MasterForm::whole) {
    store_pair(masters, reinterpret_cast<float*>(run.master) + i);
  } else {
    hn::StoreU(below, Halves(), reinterpret_cast<uint16_t*>(run.master) + i);
  }
  // to_bf16(), as a NaN is the canonical one.
  hn::StoreU(hn::Add(above, hn::ShiftRight<15>(below)), Halves(),
             reinterpret_cast<uint16_t*>(run.parameters) + i);
}

constexpr size_t kLineBytes = 64;
// How far ahead memory is asked for, as in update_simd.cpp.
constexpr size_t kAheadElements = 512;
template <size_t kElementBytes>
HWY_INLINE HWY_ATTR void prefetch_block(const std::byte* base, size_t element, size_t gap_bytes) {
  // As integers: the address may lie beyond the caller's memory, where a prefetch does nothing.
  const uintptr_t at =
      reinterpret_cast<uintptr_t>(base) + (element + kAheadElements) * kElementBytes + gap_bytes;
  for (size_t line = 0; line < kMomentBlock * kElementBytes; line += kLineBytes)
    __builtin_prefetch(reinterpret_cast<const void*>(at + line), 1);
}
template <size_t kMoments, MasterForm kForm>
HWY_INLINE HWY_ATTR void prefetch_blocks(const UpdateRun& run, size_t i) {
  const bool is_behind = i + kAheadElements >= run.count;
  prefetch_block<master_bytes_of(kForm)>(run.master, i, is_behind ? run.master_gap_bytes : 0);
  for (size_t m = 0; m < kMoments; ++m)
    prefetch_block<1>(run.moments[m], i, is_behind ? run.moment_gap_bytes : 0);
  prefetch_block<sizeof(Bf16)>(run.gradients, i, 0);
  if constexpr (kForm != MasterForm::whole) prefetch_block<sizeof(Bf16)>(run.old_parameters, i, 0);
}

// Updates the block from element i on, which is block `b` of those in `numbers`.
template <typename R, MasterForm kForm>
HWY_INLINE HWY_ATTR void update_block(const R& rule, FloatVector gradient_scale, const UpdateRun& run,
                                      size_t i, Numbers<R::kMoments>& numbers, size_t b) {
  using M = std::conditional_t<R::kMoments == 1, Alone, First>;
  prefetch_blocks<R::kMoments, kForm>(run, i);
  const BlockScales<R::kMoments> scales(numbers.scales[b]);
  auto largest_m = hn::Zero(Words()), largest_v = largest_m;
#pragma GCC unroll 4
  for (size_t at = 0; at < kMomentBlock; at += kPair) {
    const Pair g = widened(hn::Zero(Halves()), load_halves(run.gradients + (i + at) * sizeof(Bf16)));
    Pair p = load_masters<kForm>(run, i + at);
    Pair m = M::decode(run.moments[0] + i + at, scales.of[0]), v = m;
    if constexpr (R::kMoments > 1) v = Second::decode(run.moments[1] + i + at, scales.of[1]);
    rule.update(hn::Mul(g.lower, gradient_scale), p.lower, m.lower, v.lower);
    rule.update(hn::Mul(g.upper, gradient_scale), p.upper, m.upper, v.upper);
    store_masters<kForm>({with_canonical_nan(p.lower), with_canonical_nan(p.upper)}, run, i + at);
    float* const to = numbers.values[0] + b * kMomentBlock + at;
    largest_m = hn::Max(largest_m, hn::Max(magnitude_of(m.lower), magnitude_of(m.upper)));
    hn::Store(m.lower, Floats(), to);
    hn::Store(m.upper, Floats(), to + kVector);
    if constexpr (R::kMoments > 1) {
      // Means of squares: a sign would be that of a NaN.
      largest_v = hn::Max(largest_v, hn::Max(bits_of(v.lower), bits_of(v.upper)));
      float* const second = numbers.values[1] + b * kMomentBlock + at;
      hn::Store(v.lower, Floats(), second);
      hn::Store(v.upper, Floats(), second + kVector);
    }
  }
  numbers.largest[b * R::kMoments] = largest_m;
  if constexpr (R::kMoments > 1) numbers.largest[b * R::kMoments + 1] = largest_v;
}

template <typename R, MasterForm kForm>
HWY_ATTR void update_coded(const OptimizerStep& step, const UpdateRun& caller, const Chance& chance) {
  const UpdateRun run = caller;  // of its own: no store can reach it
  const R rule(step);
  const auto gradient_scale = hn::Set(Floats(), step.gradient_scale);
  Numbers<R::kMoments> numbers;
  std::fill_n(numbers.largest, R::kMoments * kBlocksAtOnce, hn::Zero(Words()));
  for (size_t i = 0; i < run.count; i += kBlocksAtOnce * kMomentBlock) {
    const size_t blocks = std::min(kBlocksAtOnce, (run.count - i) / kMomentBlock);
    for (size_t b = 0; b < blocks; ++b)
      numbers.scales[b] = top_bits(run.moments[R::kMoments - 1] + i + b * kMomentBlock);
    for (size_t b = 0; b < blocks; ++b) {
      numbers.draw(chance, i + b * kMomentBlock, b);
      update_block<R, kForm>(rule, gradient_scale, run, i + b * kMomentBlock, numbers, b);
    }
    encode_blocks_at_once<R::kMoments, AtRandom>(
        numbers, blocks, {run.moments[0] + i, R::kMoments > 1 ? run.moments[1] + i : nullptr});
  }
}

template <MasterForm kForm>
constexpr CodedUpdates kCodedUpdatesOf = {update_coded<Adam<false>, kForm>,
                                          update_coded<Adam<true>, kForm>,
                                          update_coded<Adagrad, kForm>,
                                          update_coded<Lion, kForm>,
                                          nullptr,
                                          update_coded<SgdMomentum, kForm>,
                                          nullptr,
                                          nullptr};

const CodedUpdates kWholeUpdates = kCodedUpdatesOf<MasterForm::whole>;
const CodedUpdates kCompactUpdates = kCodedUpdatesOf<MasterForm::remainder>;

}  // namespace
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace terrace::kernels {

CodedUpdate find_coded_update(InstructionSet set, Rule rule, const UpdateRun& run) {
  const bool is_usual = run.gradient_type == DataType::bf16 && run.parameter_type == DataType::bf16;
  if (!is_usual || run.form == MasterForm::parameter) return nullptr;
  const CodedUpdates* const updates = run.form == MasterForm::whole
                                          ? TERRACE_VECTOR_TABLE(set, kWholeUpdates)
                                          : TERRACE_VECTOR_TABLE(set, kCompactUpdates);
  return updates != nullptr ? (*updates)[static_cast<size_t>(rule)] : nullptr;
}

}  // namespace terrace::kernels
#endif
