// Loads and stores of fp32 and bf16 elements as fp32 vectors, for the kernel files that Highway compiles once
// per instruction set (foreach_target.h). Included there only, after <hwy/highway.h>. The stores round as
// to_bf16() of base/data_type.h does, bit for bit; Highway's own DemoteTo rounds otherwise.
#if defined(TERRACE_OPTIMIZER_CPU_VECTORS) == defined(HWY_TARGET_TOGGLE)  // include guard, once per target
#ifdef TERRACE_OPTIMIZER_CPU_VECTORS
#undef TERRACE_OPTIMIZER_CPU_VECTORS
#else
#define TERRACE_OPTIMIZER_CPU_VECTORS
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVector = hn::Vec<Floats>;

// The element type is passed as an unused value: `float{}` or `Bf16{}`. Addresses need no alignment.
template <typename D>
HWY_INLINE HWY_ATTR hn::Vec<D> load_floats(D d, const std::byte* from, float /*element*/) {
  return hn::LoadU(d, reinterpret_cast<const float*>(from));
}
template <typename D>
HWY_INLINE HWY_ATTR hn::Vec<D> load_floats(D d, const std::byte* from, Bf16 /*element*/) {
  const hn::Rebind<uint32_t, D> bits;
  const hn::Rebind<uint16_t, D> halves;
  const auto upper = hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, upper)));
}

HWY_INLINE HWY_ATTR void store_floats(FloatVector values, std::byte* to, float /*element*/) {
  hn::StoreU(values, Floats(), reinterpret_cast<float*>(to));
}
HWY_INLINE HWY_ATTR void store_floats(FloatVector values, std::byte* to, Bf16 /*element*/) {
  const hn::Rebind<uint32_t, Floats> du;
  const hn::Rebind<uint16_t, Floats> halves;
  const auto bits = hn::BitCast(du, values);
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Set(du, 0x8000u)));
  const auto quieted = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x0040u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(values));
  const auto upper = hn::TruncateTo(halves, hn::IfThenElse(is_nan, quieted, rounded));
  hn::StoreU(upper, halves, reinterpret_cast<uint16_t*>(to));
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard
