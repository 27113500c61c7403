// The gradient kernels with AVX2 and AVX-512, bit for bit as gradient_scalar.cpp. Compiled with baseline
// flags and re-included by Highway once per target: see adam_simd.cpp.
#define HWY_COMPILE_ALL_ATTAINABLE
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/gradient_simd.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file again, once per target.
#include <hwy/highway.h>
#include <terrace/optimizer_cpu/internal/kernels.h>

// clang-format off: after highway.h
#include <terrace/optimizer_cpu/internal/vectors-inl.h>
// clang-format on

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

constexpr size_t kVector = hn::MaxLanes(Floats());
using Doubles = hn::ScalableTag<double>;

template <typename T>
HWY_ATTR void add(float* accumulator, const std::byte* gradient, size_t count) {
  const Floats d;
  const size_t whole = count / kVector * kVector;
  for (size_t i = 0; i != whole; i += kVector) {
    const auto g = load_floats(d, gradient + i * sizeof(T), T{});
    hn::StoreU(hn::Add(hn::LoadU(d, accumulator + i), g), d, accumulator + i);
  }
  kScalarGradient.add[sizeof(T) == 2](accumulator + whole, gradient + whole * sizeof(T), count - whole);
}

template <typename T>
HWY_ATTR void add_squares(SumLanes& lanes, const std::byte* gradient, size_t count) {
  const Doubles d;
  const hn::Rebind<float, Doubles> narrow;
  constexpr size_t kLanes = hn::MaxLanes(Doubles());
  constexpr size_t kParts = kSumLanes / kLanes;
  static_assert(kParts * kLanes == kSumLanes);
  hn::Vec<Doubles> parts[kParts];
  for (size_t part = 0; part < kParts; ++part) parts[part] = hn::LoadU(d, lanes.data() + part * kLanes);
  const size_t whole = count / kSumLanes * kSumLanes;
  for (size_t i = 0; i != whole; i += kSumLanes) {
#pragma GCC unroll 4
    for (size_t part = 0; part < kParts; ++part) {
      const std::byte* from = gradient + (i + part * kLanes) * sizeof(T);
      const auto g = hn::PromoteTo(d, load_floats(narrow, from, T{}));
      parts[part] = hn::Add(parts[part], hn::Mul(g, g));
    }
  }
  for (size_t part = 0; part < kParts; ++part) hn::StoreU(parts[part], d, lanes.data() + part * kLanes);
  kScalarGradient.add_squares[sizeof(T) == 2](lanes, gradient + whole * sizeof(T), count - whole);
}

HWY_ATTR void to_bf16(const float* from, Bf16* to, size_t count) {
  const size_t whole = count / kVector * kVector;
  for (size_t i = 0; i != whole; i += kVector) {
    store_floats(hn::LoadU(Floats(), from + i), reinterpret_cast<std::byte*>(to + i), Bf16{});
  }
  kScalarGradient.to_bf16(from + whole, to + whole, count - whole);
}

HWY_ATTR void to_float(const std::byte* from, float* to, size_t count) {
  const size_t whole = count / kVector * kVector;
  for (size_t i = 0; i != whole; i += kVector) {
    hn::StoreU(load_floats(Floats(), from + i * sizeof(Bf16), Bf16{}), Floats(), to + i);
  }
  kScalarGradient.to_float(from + whole * sizeof(Bf16), to + whole, count - whole);
}

const GradientKernels kGradient = {
    .add = {add<float>, add<Bf16>},
    .add_squares = {add_squares<float>, add_squares<Bf16>},
    .to_bf16 = to_bf16,
    .to_float = to_float,
};

}  // namespace
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace terrace::kernels {

const GradientKernels* find_vector_gradient_kernels(InstructionSet set) {
#if HWY_TARGETS & HWY_AVX3
  if (set == InstructionSet::avx512) return &N_AVX3::kGradient;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (set == InstructionSet::avx2) return &N_AVX2::kGradient;
#endif
  static_cast<void>(set);
  return nullptr;
}

}  // namespace terrace::kernels
#endif
