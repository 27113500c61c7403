// The quantization kernels with AVX2 and AVX-512, bit for bit as quantization.cpp. How this file is compiled:
// internal/vectors-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/quantization_simd.cpp"
#include <terrace/optimizer_cpu/internal/vectors-inl.h>

#include <cstring>

#include <terrace/optimizer_cpu/internal/quantization_kernels.h>
#include <terrace/optimizer_cpu/quantization.h>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

constexpr size_t kVector = hn::MaxLanes(Floats());
constexpr size_t kVectors = kQuantizedBlock / kVector;
using Integers = hn::Rebind<int32_t, Floats>;
using Bytes = hn::Rebind<int8_t, Floats>;

template <typename T>
HWY_ATTR uint16_t quantize_block(const std::byte* values, uint32_t bits, int8_t* codes) {
  const Floats d;
  const Integers di;
  const auto magnitude_bits = hn::Set(di, 0x7fffffff);
  FloatVector block[kVectors];
  auto largest = hn::Zero(di);
  for (size_t v = 0; v < kVectors; ++v) {
    block[v] = load_floats(d, values + v * kVector * sizeof(T), T{});
    largest = hn::Max(largest, hn::And(hn::BitCast(di, block[v]), magnitude_bits));
  }
  const auto magnitude = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  const uint16_t scale = scale_of(magnitude, static_cast<DataType>(kIndexOf<T>));
  if (scale == 0 || is_nan_scale(scale)) {
    std::memset(codes, 0, kQuantizedBlock);
    return scale;
  }
  const int32_t levels = levels_of(bits);
  const auto inverse_step = hn::Set(d, static_cast<float>(levels) / largest_of(scale));
  const auto most = hn::Set(di, levels), least = hn::Set(di, -levels);
  for (size_t v = 0; v < kVectors; ++v) {
    const auto nearest = hn::NearestInt(hn::Mul(block[v], inverse_step));
    const auto code = hn::Min(hn::Max(nearest, least), most);
    hn::StoreU(hn::DemoteTo(Bytes(), code), Bytes(), codes + v * kVector);
  }
  return scale;
}

template <typename T>
HWY_ATTR void dequantize_block(const int8_t* codes, float step, std::byte* values) {
  const Floats d;
  const auto steps = hn::Set(d, step);
  for (size_t v = 0; v < kVectors; ++v) {
    const auto code = hn::PromoteTo(Integers(), hn::LoadU(Bytes(), codes + v * kVector));
    store_floats(hn::Mul(hn::ConvertTo(d, code), steps), values + v * kVector * sizeof(T), T{});
  }
}

const QuantizationKernels kQuantization = {
    .quantize = {quantize_block<float>, quantize_block<Bf16>, quantize_block<Fp16>},
    .dequantize = {dequantize_block<float>, dequantize_block<Bf16>, dequantize_block<Fp16>},
};

}  // namespace
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace terrace::kernels {

const QuantizationKernels* find_vector_quantization_kernels(InstructionSet set) {
  return TERRACE_VECTOR_TABLE(set, kQuantization);
}

}  // namespace terrace::kernels
#endif
