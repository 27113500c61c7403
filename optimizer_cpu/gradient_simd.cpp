// The gradient kernels with AVX2 and AVX-512, bit for bit as gradient_scalar.cpp. How this file is compiled:
// internal/vectors-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/gradient_simd.cpp"
#include <terrace/optimizer_cpu/internal/vectors-inl.h>

#include <terrace/optimizer_cpu/internal/gradient_kernels.h>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

constexpr size_t kVector = hn::MaxLanes(Floats());
using Doubles = hn::ScalableTag<double>;

template <typename Accumulator, typename Gradient>
HWY_ATTR void add(std::byte* accumulator, const std::byte* gradient, size_t count) {
  const Floats d;
  const size_t whole = count / kVector * kVector;
  for (size_t i = 0; i != whole; i += kVector) {
    std::byte* const at = accumulator + i * sizeof(Accumulator);
    const auto g = load_floats(d, gradient + i * sizeof(Gradient), Gradient{});
    store_floats(hn::Add(load_floats(d, at, Accumulator{}), g), at, Accumulator{});
  }
  constexpr bool kOneType = std::is_same_v<Accumulator, Gradient>;
  (kOneType ? kScalarGradient.add_same : kScalarGradient.add)[kIndexOf<Gradient>](
      accumulator + whole * sizeof(Accumulator), gradient + whole * sizeof(Gradient), count - whole);
}

// The lanes of a sum of squares in registers.
struct SquareLanes {
  static constexpr size_t kLanes = hn::MaxLanes(Doubles());
  static constexpr size_t kParts = kSumLanes / kLanes;
  static_assert(kParts * kLanes == kSumLanes);
  hn::Vec<Doubles> parts[kParts];

  HWY_INLINE HWY_ATTR explicit SquareLanes(const SumLanes& lanes) {
    for (size_t part = 0; part < kParts; ++part)
      parts[part] = hn::LoadU(Doubles(), lanes.data() + part * kLanes);
  }
  // kSumLanes elements.
  template <typename Gradient>
  HWY_INLINE HWY_ATTR void add(const std::byte* gradient, Gradient type) {
    const hn::Rebind<float, Doubles> narrow;
#pragma GCC unroll 4
    for (size_t part = 0; part < kParts; ++part) {
      const std::byte* from = gradient + part * kLanes * sizeof(Gradient);
      const auto g = hn::PromoteTo(Doubles(), load_floats(narrow, from, type));
      parts[part] = hn::Add(parts[part], hn::Mul(g, g));
    }
  }
  HWY_INLINE HWY_ATTR void store(SumLanes& lanes) const {
    for (size_t part = 0; part < kParts; ++part)
      hn::StoreU(parts[part], Doubles(), lanes.data() + part * kLanes);
  }
};

template <typename Gradient>
HWY_ATTR void add_squares(SumLanes& lanes, const std::byte* gradient, size_t count) {
  SquareLanes squares(lanes);
  const size_t whole = count / kSumLanes * kSumLanes;
  for (size_t i = 0; i != whole; i += kSumLanes) squares.add(gradient + i * sizeof(Gradient), Gradient{});
  squares.store(lanes);
  kScalarGradient.add_squares[kIndexOf<Gradient>](lanes, gradient + whole * sizeof(Gradient), count - whole);
}

template <typename Accumulator, typename Gradient>
HWY_ATTR void add_and_square(SumLanes& lanes, std::byte* accumulator, const std::byte* gradient,
                             size_t count) {
  const Floats d;
  SquareLanes squares(lanes);
  const size_t whole = count / kSumLanes * kSumLanes;
  for (size_t i = 0; i != whole; i += kSumLanes) {
    for (size_t j = i; j != i + kSumLanes; j += kVector) {
      std::byte* const at = accumulator + j * sizeof(Accumulator);
      const auto g = load_floats(d, gradient + j * sizeof(Gradient), Gradient{});
      store_floats(hn::Add(load_floats(d, at, Accumulator{}), g), at, Accumulator{});
    }
    // Read back, as it was rounded.
    squares.add(accumulator + i * sizeof(Accumulator), Accumulator{});
  }
  squares.store(lanes);
  constexpr bool kOneType = std::is_same_v<Accumulator, Gradient>;
  (kOneType ? kScalarGradient.add_and_square_same : kScalarGradient.add_and_square)[kIndexOf<Gradient>](
      lanes, accumulator + whole * sizeof(Accumulator), gradient + whole * sizeof(Gradient), count - whole);
}

// One of the two types is float.
template <typename From, typename To>
HWY_ATTR void convert(const std::byte* from, std::byte* to, size_t count) {
  const size_t whole = count / kVector * kVector;
  for (size_t i = 0; i != whole; i += kVector) {
    store_floats(load_floats(Floats(), from + i * sizeof(From), From{}), to + i * sizeof(To), To{});
  }
  constexpr size_t kNarrower = kIndexOf<From> + kIndexOf<To>;
  (std::is_same_v<From, float> ? kScalarGradient.narrow : kScalarGradient.widen)[kNarrower](
      from + whole * sizeof(From), to + whole * sizeof(To), count - whole);
}
static_assert(kIndexOf<float> == 0);

const GradientKernels kGradient = {
    .add = {add<float, float>, add<float, Bf16>, add<float, Fp16>},
    .add_same = {add<float, float>, add<Bf16, Bf16>, add<Fp16, Fp16>},
    .add_squares = {add_squares<float>, add_squares<Bf16>, add_squares<Fp16>},
    .add_and_square = {add_and_square<float, float>, add_and_square<float, Bf16>,
                       add_and_square<float, Fp16>},
    .add_and_square_same = {add_and_square<float, float>, add_and_square<Bf16, Bf16>,
                            add_and_square<Fp16, Fp16>},
    .narrow = {convert<float, float>, convert<float, Bf16>, convert<float, Fp16>},
    .widen = {convert<float, float>, convert<Bf16, float>, convert<Fp16, float>},
};

}  // namespace
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace terrace::kernels {

const GradientKernels* find_vector_gradient_kernels(InstructionSet set) {
  return TERRACE_VECTOR_TABLE(set, kGradient);
}

}  // namespace terrace::kernels
#endif
