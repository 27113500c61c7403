// The Adam update with AVX2 and AVX-512, bit for bit as adam_scalar.cpp. This file is compiled with baseline
// flags; Highway re-includes it and turns on wider instructions only for the functions between
// HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE, so nothing here can leak wide code into functions that other
// files share.
#define HWY_COMPILE_ALL_ATTAINABLE
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/adam_simd.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file again, once per target.
#include <hwy/highway.h>
#include <terrace/optimizer_cpu/internal/kernels.h>

#include <algorithm>

// clang-format off: after highway.h
#include <terrace/optimizer_cpu/internal/vectors-inl.h>
// clang-format on

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kLineElements = kLineBytes / sizeof(float);

// How far ahead memory is asked for. The hardware's own prefetching starts anew at every 4 KiB page and so
// four times in each array of a tile. Measured (Cascade Lake, 16 Mi parameters): 64 elements ahead gain 8 %,
// 256 and 512 gain 15 %; in cache the prefetches cost nothing that can be measured.
constexpr size_t kPrefetchElements = 512;
static_assert(kPrefetchElements < kAdamTileElements);

HWY_INLINE HWY_ATTR void prefetch(const void* base, size_t offset_bytes) {
  // As integers: the address may lie beyond the caller's memory, where a prefetch does nothing.
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(base) + offset_bytes));
}

template <typename Gradient, typename Parameter, bool kDecoupled>
struct Adam {
  // Elements [begin, end), whole vectors only. Prefetches the record arrays `ahead_bytes` before they are
  // needed.
  static HWY_ATTR void update(const AdamStep& step, const AdamRun& run, size_t begin, size_t end,
                              size_t ahead_bytes) {
    const Floats d;
    constexpr size_t kVector = hn::MaxLanes(Floats());
    const auto gradient_scale = hn::Set(d, step.gradient_scale);
    const auto beta1 = hn::Set(d, step.beta1);
    const auto beta2 = hn::Set(d, step.beta2);
    const auto one_minus_beta1 = hn::Set(d, step.one_minus_beta1);
    const auto one_minus_beta2 = hn::Set(d, step.one_minus_beta2);
    const auto eps = hn::Set(d, step.eps);
    const auto step_size = hn::Set(d, step.step_size);
    const auto inverse_root = hn::Set(d, step.inverse_root);
    const auto decay = hn::Set(d, step.decay);
    for (size_t i = begin; i != end; i += kVector) {
      if (kVector == kLineElements || i % kLineElements == 0) {
        prefetch(run.master + i, ahead_bytes);
        prefetch(run.exp_avg + i, ahead_bytes);
        prefetch(run.exp_avg_sq + i, ahead_bytes);
        prefetch(run.gradients + i * sizeof(Gradient), kPrefetchElements * sizeof(Gradient));
      }
      auto p = hn::LoadU(d, run.master + i);
      auto g = hn::Mul(load_floats(d, run.gradients + i * sizeof(Gradient), Gradient{}), gradient_scale);
      if constexpr (kDecoupled) {
        p = hn::Sub(p, hn::Mul(decay, p));
      } else {
        g = hn::Add(g, hn::Mul(decay, p));
      }
      const auto m = hn::Add(hn::Mul(beta1, hn::LoadU(d, run.exp_avg + i)), hn::Mul(one_minus_beta1, g));
      const auto v =
          hn::Add(hn::Mul(beta2, hn::LoadU(d, run.exp_avg_sq + i)), hn::Mul(one_minus_beta2, hn::Mul(g, g)));
      const auto denominator = hn::Add(hn::Mul(hn::Sqrt(v), inverse_root), eps);
      p = hn::Sub(p, hn::Mul(step_size, hn::Div(m, denominator)));
      hn::StoreU(p, d, run.master + i);
      hn::StoreU(m, d, run.exp_avg + i);
      hn::StoreU(v, d, run.exp_avg_sq + i);
      store_floats(p, run.parameters + i * sizeof(Parameter), Parameter{});
    }
  }

  static HWY_ATTR void run(const AdamStep& step, const AdamRun& run) {
    constexpr size_t kVector = hn::MaxLanes(Floats());
    const size_t whole = run.count / kVector * kVector;
    // The last elements prefetch from where the caller goes on.
    const size_t turn = whole - std::min(whole, kPrefetchElements / kVector * kVector);
    constexpr size_t kAheadBytes = kPrefetchElements * sizeof(float);
    update(step, run, 0, turn, kAheadBytes);
    update(step, run, turn, whole, kAheadBytes + run.continuation_gap_bytes);
    if (whole == run.count) return;
    const AdamKernel rest = kScalarAdam.update[sizeof(Gradient) == 2][sizeof(Parameter) == 2][kDecoupled];
    rest(step, AdamRun{run.master + whole, run.exp_avg + whole, run.exp_avg_sq + whole,
                       run.gradients + whole * sizeof(Gradient), run.parameters + whole * sizeof(Parameter),
                       run.count - whole, 0});
  }
};

const AdamKernels kAdam = {{{
    {{{Adam<float, float, false>::run, Adam<float, float, true>::run},
      {Adam<float, Bf16, false>::run, Adam<float, Bf16, true>::run}}},
    {{{Adam<Bf16, float, false>::run, Adam<Bf16, float, true>::run},
      {Adam<Bf16, Bf16, false>::run, Adam<Bf16, Bf16, true>::run}}},
}}};

}  // namespace
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace terrace::kernels {

const AdamKernels* find_vector_adam_kernels(InstructionSet set) {
#if HWY_TARGETS & HWY_AVX3
  if (set == InstructionSet::avx512) return &N_AVX3::kAdam;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (set == InstructionSet::avx2) return &N_AVX2::kAdam;
#endif
  static_cast<void>(set);
  return nullptr;
}

}  // namespace terrace::kernels
#endif
