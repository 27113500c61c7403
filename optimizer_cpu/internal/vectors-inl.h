// The common part of the vector kernel files: their compilation by Highway, loads and stores of elements as
// fp32 vectors, and the choice of a table. Such a file starts with
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/<itself>"
//   #include <terrace/optimizer_cpu/internal/vectors-inl.h>
//
// It is compiled with baseline flags; foreach_target.h includes it again, once per target, and wider
// instructions are on only between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE, so nothing can leak wide
// code into functions that other files share. Each target fills its own table, and TERRACE_VECTOR_TABLE finds
// it.

#ifndef HWY_COMPILE_ALL_ATTAINABLE
#define HWY_COMPILE_ALL_ATTAINABLE
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>
#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/instruction_set.h>

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

// The element type is passed as an unused value: `float{}`, `Bf16{}` or `Fp16{}`. Addresses need no
// alignment.
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
// These are the processor's own conversions, both ways; to_fp16() and to_float() of base/data_type.h give
// their bits.
template <typename D>
HWY_INLINE HWY_ATTR hn::Vec<D> load_floats(D d, const std::byte* from, Fp16 /*element*/) {
  const hn::Rebind<hwy::float16_t, D> halves;
  return hn::PromoteTo(d, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(from)));
}

HWY_INLINE HWY_ATTR void store_floats(FloatVector values, std::byte* to, float /*element*/) {
  hn::StoreU(values, Floats(), reinterpret_cast<float*>(to));
}
// Rounds as to_bf16() of base/data_type.h does; Highway's own DemoteTo rounds otherwise.
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
HWY_INLINE HWY_ATTR void store_floats(FloatVector values, std::byte* to, Fp16 /*element*/) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  hn::StoreU(hn::DemoteTo(halves, values), halves, reinterpret_cast<hwy::float16_t*>(to));
}

// A master from its two halves (MasterForm::remainder): bf16 parameters and int16 remainders.
HWY_INLINE HWY_ATTR FloatVector join_floats(const std::byte* parameters, const std::byte* remainders) {
  const hn::Rebind<int32_t, Floats> bits;
  const hn::Rebind<int16_t, Floats> halves;
  const hn::Rebind<uint32_t, Floats> du;
  const hn::Rebind<uint16_t, Floats> dh;
  const auto upper = hn::PromoteTo(du, hn::LoadU(dh, reinterpret_cast<const uint16_t*>(parameters)));
  const auto low = hn::PromoteTo(bits, hn::LoadU(halves, reinterpret_cast<const int16_t*>(remainders)));
  return hn::BitCast(Floats(), hn::Add(hn::ShiftLeft<16>(upper), hn::BitCast(du, low)));
}
// Stores the remainders beside to_bf16(), which are the low halves, of numbers that are no NaN or the
// canonical one.
HWY_INLINE HWY_ATTR void store_low_halves(FloatVector values, std::byte* to) {
  const hn::Rebind<uint32_t, Floats> du;
  const hn::Rebind<uint16_t, Floats> halves;
  hn::StoreU(hn::TruncateTo(halves, hn::BitCast(du, values)), halves, reinterpret_cast<uint16_t*>(to));
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard

// A pointer to the object `table` of the target that `set` names; null where this build has none. For code in
// namespace terrace::kernels after every target (#if HWY_ONCE).
#ifndef TERRACE_VECTOR_TABLE
#if HWY_TARGETS & HWY_AVX3
#define TERRACE_AVX512_TABLE(table) &N_AVX3::table
#else
#define TERRACE_AVX512_TABLE(table) nullptr
#endif
#if HWY_TARGETS & HWY_AVX2
#define TERRACE_AVX2_TABLE(table) &N_AVX2::table
#else
#define TERRACE_AVX2_TABLE(table) nullptr
#endif
#define TERRACE_VECTOR_TABLE(set, table)                         \
  ((set) == InstructionSet::avx512 ? TERRACE_AVX512_TABLE(table) \
   : (set) == InstructionSet::avx2 ? TERRACE_AVX2_TABLE(table)   \
                                   : nullptr)
#endif
