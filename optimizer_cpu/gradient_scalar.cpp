// The specification of the gradient kernels (gradient.h). Plain and slow; the vector kernels give these bits.
#include <cstring>

#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/internal/kernels.h>

namespace terrace::kernels {
namespace {

template <typename T>
float load(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return terrace::to_float(value);
}

template <typename T>
void add(float* accumulator, const std::byte* gradient, size_t count) {
  for (size_t i = 0; i < count; ++i) accumulator[i] += load<T>(gradient, i);
}

template <typename T>
void add_squares(SumLanes& lanes, const std::byte* gradient, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const double value = load<T>(gradient, i);
    lanes[i % kSumLanes] += value * value;
  }
}

void convert_to_bf16(const float* from, Bf16* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = terrace::to_bf16(from[i]);
}

void convert_to_float(const std::byte* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = load<Bf16>(from, i);
}

}  // namespace

const GradientKernels kScalarGradient = {
    .add = {add<float>, add<Bf16>},
    .add_squares = {add_squares<float>, add_squares<Bf16>},
    .to_bf16 = convert_to_bf16,
    .to_float = convert_to_float,
};

}  // namespace terrace::kernels
