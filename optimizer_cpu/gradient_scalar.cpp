// The specification of the gradient kernels (gradient.h). Plain and slow; the vector kernels give these bits.
#include <terrace/optimizer_cpu/internal/elements.h>
#include <terrace/optimizer_cpu/internal/gradient_kernels.h>

namespace terrace::kernels {
namespace {

template <typename Accumulator, typename Gradient>
void add(std::byte* accumulator, const std::byte* gradient, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float sum = load_element<Accumulator>(accumulator, i) + load_element<Gradient>(gradient, i);
    store_element<Accumulator>(accumulator, i, sum);
  }
}

template <typename Gradient>
void add_squares(SumLanes& lanes, const std::byte* gradient, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const double value = load_element<Gradient>(gradient, i);
    lanes[i % kSumLanes] += value * value;
  }
}

template <typename Accumulator, typename Gradient>
void add_and_square(SumLanes& lanes, std::byte* accumulator, const std::byte* gradient, size_t count) {
  add<Accumulator, Gradient>(accumulator, gradient, count);
  add_squares<Accumulator>(lanes, accumulator, count);
}

template <typename From, typename To>
void convert(const std::byte* from, std::byte* to, size_t count) {
  for (size_t i = 0; i < count; ++i) store_element<To>(to, i, load_element<From>(from, i));
}

}  // namespace

const GradientKernels kScalarGradient = {
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

}  // namespace terrace::kernels
