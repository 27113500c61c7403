// Splitting and joining master weights with AVX2 and AVX-512, bit for bit as masters.cpp. How this file is
// compiled: internal/vectors-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/masters_simd.cpp"
#include <terrace/optimizer_cpu/internal/vectors-inl.h>

#include <terrace/optimizer_cpu/update_kernels.h>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

constexpr size_t kVector = hn::MaxLanes(Floats());

HWY_ATTR void split(const std::byte* masters, std::byte* parameters, std::byte* remainders, size_t count) {
  const Floats d;
  const size_t whole = count / kVector * kVector;
  for (size_t i = 0; i != whole; i += kVector) {
    const auto master = load_floats(d, masters + i * sizeof(float), float{});
    store_floats(master, parameters + i * sizeof(Bf16), Bf16{});
    store_low_halves(hn::IfThenZeroElse(hn::IsNaN(master), master), remainders + i * sizeof(int16_t));
  }
  kScalarMasters.split(masters + whole * sizeof(float), parameters + whole * sizeof(Bf16),
                       remainders + whole * sizeof(int16_t), count - whole);
}

HWY_ATTR void join(const std::byte* parameters, const std::byte* remainders, std::byte* masters,
                   size_t count) {
  const size_t whole = count / kVector * kVector;
  for (size_t i = 0; i != whole; i += kVector) {
    const size_t at = i * sizeof(int16_t);
    store_floats(join_floats(parameters + at, remainders + at), masters + i * sizeof(float), float{});
  }
  kScalarMasters.join(parameters + whole * sizeof(Bf16), remainders + whole * sizeof(int16_t),
                      masters + whole * sizeof(float), count - whole);
}

const MasterKernels kMasters = {.split = split, .join = join};

}  // namespace
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace terrace::kernels {

const MasterKernels* find_vector_master_kernels(InstructionSet set) {
  return TERRACE_VECTOR_TABLE(set, kMasters);
}

}  // namespace terrace::kernels
#endif
