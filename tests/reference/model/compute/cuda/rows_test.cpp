// What the kernels do element by element and row by row, and products: the bits of the host's operations.
#include <terrace/optimizer_cpu/gradient.h>

#include "cuda_cases.h"

namespace terrace::testing::rows_test {
namespace {

// fp32 in the type that a parameter or gradient has.
template <typename T>
std::vector<T> in_type(const std::vector<float>& values) {
  if constexpr (std::is_same_v<T, float>) {
    return values;
  } else {
    return rounded_to<T>(values);
  }
}

// body(T{}) for the three element types.
template <typename Body>
void for_every_type(Body body) {
  body(float{});
  body(Bf16{});
  body(Fp16{});
}

TEST_F(CudaKernels, ActivationsHaveTheHostsBits) {
  for (const size_t count : {1u, 33u, 1030u}) {
    for (const size_t displacement : {0u, 1u}) {
      std::vector<float> x = random_values(count, 1, 4.0f);
      x[0] = -200.0f;
      const std::vector<float> up = random_values(count, 2), dy = random_values(count, 3);
      std::vector<float> gelu(count), dgelu = dy, gated(count), dgate = dy, dup(count), sum = up;
      host_.gelu_forward(x, gelu);
      host_.gelu_backward(x, dgelu);
      host_.swiglu_forward(x, up, gated);
      host_.swiglu_backward(x, up, dgate, dup);
      host_.add(x, sum);
      in_every_way([&](const CudaOps& ops) {
        const OnDevice<float> device_x(x, displacement), device_up(up);
        OnDevice<float> y(count), gradient(dy, displacement), other(count), added(up, displacement);
        ops.gelu_forward(device_x, y);
        expect_bits(y.read(), gelu, "GELU");
        ops.gelu_backward(device_x, gradient);
        expect_bits(gradient.read(), dgelu, "GELU's gradient");
        ops.swiglu_forward(device_x, device_up, y);
        expect_bits(y.read(), gated, "gated unit");
        OnDevice<float> gate_gradient(dy);
        ops.swiglu_backward(device_x, device_up, gate_gradient, other);
        expect_bits(gate_gradient.read(), dgate, "the gate's gradient");
        expect_bits(other.read(), dup, "the gradient of what is gated");
        ops.add(device_x, added);
        expect_bits(added.read(), sum, "sum");
      });
    }
  }
}

TEST_F(CudaKernels, CopiesRowsBetweenMatricesOfOtherWidths) {
  for (const RowCopyShape& shape : {RowCopyShape{7, 12, 20, 16}, RowCopyShape{5, 6, 6, 9}}) {
    const std::vector<float> x = random_values(6 * shape.from_stride + 12, 1);
    std::vector<float> expected = random_values(6 * shape.to_stride + 12, 2);
    const std::vector<float> before = expected;
    host_.copy_rows(shape, x, expected);
    for (uint64_t i = 0; i < expected.size(); ++i) {
      const uint64_t row = i / shape.to_stride, column = i % shape.to_stride;
      const bool is_copied = row < shape.rows && column < shape.width;
      ASSERT_EQ(expected[i], is_copied ? x[row * shape.from_stride + column] : before[i]) << i;
    }
    in_every_way([&](const CudaOps& ops) {
      OnDevice<float> y(before);
      ops.copy_rows(shape, OnDevice<float>(x), y);
      expect_bits(y.read(), expected, "copied rows");
    });
  }
}

TEST_F(CudaKernels, RotationHasTheHostsBits) {
  const RotaryShape shape{14, 7, 3, 10};
  const std::vector<float> cosines = random_values(35, 1), sines = random_values(35, 2);
  const std::vector<float> x = random_values(14 * 30, 3);
  for (const bool inverse : {false, true}) {
    std::vector<float> expected = x, host_cosines = cosines, host_sines = sines;
    host_.rotate(shape, {host_cosines, host_sines}, inverse, expected);
    in_every_way([&](const CudaOps& ops) {
      OnDevice<float> y(x), device_cosines(cosines), device_sines(sines);
      ops.rotate(shape, {device_cosines, device_sines}, inverse, y);
      expect_bits(y.read(), expected, "rotation");
    });
  }
}

TEST_F(CudaKernels, GradientsLandWithOneRounding) {
  for_every_type([&](auto element) {
    using T = decltype(element);
    for (const size_t count : {1u, 31u, 260u, 1025u}) {
      for (const bool accumulate : {false, true}) {
        const std::vector<float> values = random_values(count, 1), there = random_values(count, 2);
        const std::vector<T> before = in_type<T>(there);
        std::vector<float> sums = values;
        for (size_t i = 0; i < count; ++i) {
          if (accumulate) sums[i] = to_float(before[i]) + values[i];
        }
        in_every_way([&](const CudaOps& ops) {
          OnDevice<T> gradient(before, count % 2);
          ops.land(OnDevice<float>(values), gradient.into(accumulate));
          expect_bits(gradient.read(), in_type<T>(sums), "gradient");
        });
      }
    }
  });
}

// Every 16-bit number widens exactly; numbers beside every rounding boundary of both types narrow as on the
// host.
TEST_F(CudaKernels, ConversionsAreTheOnesOfTheHost) {
  std::vector<uint16_t> halves(65536);
  std::vector<float> floats;
  for (uint32_t i = 0; i < 65536; ++i) {
    halves[i] = static_cast<uint16_t>(i);
    for (const uint32_t below : {0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u}) {
      floats.push_back(std::bit_cast<float>((i << 16) + below));
    }
  }
  const CudaOps ops(products_, {});
  for (const DataType type : {DataType::bf16, DataType::fp16}) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(halves.data());
    std::vector<float> wide(halves.size());
    convert_to_float(InstructionSet::scalar, bytes, type, wide.data(), wide.size());
    const OnDevice<uint16_t> device_halves(halves);
    OnDevice<float> device_wide(wide.size());
    ops.convert_to_float({device_halves.view().data, type}, device_wide);
    expect_bits(device_wide.read(), wide, "widened");
    std::vector<uint16_t> narrow(floats.size());
    convert_from_float(InstructionSet::scalar, floats.data(), reinterpret_cast<std::byte*>(narrow.data()),
                       type, floats.size());
    OnDevice<uint16_t> device_narrow(floats.size());
    ops.convert_from_float(OnDevice<float>(floats), reinterpret_cast<std::byte*>(device_narrow.data()), type);
    expect_bits(device_narrow.read(), narrow, "narrowed");
  }
}

TEST_F(CudaKernels, DecodedWeightsHaveTheHostsBits) {
  for_every_type([&](auto element) {
    using T = decltype(element);
    constexpr DataType type = std::is_same_v<T, float>  ? DataType::fp32
                              : std::is_same_v<T, Bf16> ? DataType::bf16
                                                        : DataType::fp16;
    for (const WeightCode code : {WeightCode::nf4, WeightCode::int8}) {
      const CodedWeight weight{code, 5 * kCodedBlock + 3, type};
      const std::vector<float> values = random_values(weight.elements, 1);
      std::vector<float> words(weight.words());
      encode_weights(code, values, std::as_writable_bytes(std::span(words)).data());
      const auto* const found = reinterpret_cast<const T*>(
          host_.decode_weight(weight, std::as_bytes(std::span(words)).data(), host_work_.arena()).data);
      const std::vector<T> expected(found, found + weight.elements);
      in_every_way([&](const CudaOps& ops) {
        const OnDevice<float> device_words(words);
        const ParameterView made = ops.decode_weight(weight, device_words.view().data, arena_);
        EXPECT_EQ(made.type, type);
        std::vector<T> decoded(weight.elements);
        copy_from_device(decoded.data(), made.data, decoded.size() * sizeof(T));
        expect_bits(decoded, expected, "decoded weight");
      });
    }
  });
}

TEST_F(CudaKernels, LayerNormHasTheHostsBits) {
  for_every_type([&](auto element) {
    using T = decltype(element);
    for (const NormShape& shape :
         {NormShape{1, 1}, NormShape{5, 17}, NormShape{67, 33}, NormShape{130, 64}}) {
      const uint64_t count = shape.rows * shape.width;
      const std::vector<float> x = random_values(count, 1), dy = random_values(count, 2);
      const std::vector<T> gamma = in_type<T>(random_values(shape.width, 3));
      const std::vector<T> beta = in_type<T>(random_values(shape.width, 4));
      std::vector<float> y(count), means(shape.rows), deviations(shape.rows), dx = random_values(count, 5);
      const std::vector<float> dx_before = dx;
      std::vector<T> dgamma = gamma, dbeta = beta;
      host_.layer_norm_forward(shape, x, view(gamma), view(beta), y, {means, deviations}, host_work_.arena());
      host_.layer_norm_backward(shape, x, {means, deviations}, view(gamma), dy, dx, into(dgamma, true),
                                into(dbeta), host_work_.arena());
      in_every_way([&](const CudaOps& ops) {
        const OnDevice<float> x_d(x), dy_d(dy);
        const OnDevice<T> gamma_d(gamma), beta_d(beta);
        OnDevice<float> y_d(count), means_d(shape.rows), deviations_d(shape.rows), dx_d(dx_before);
        OnDevice<T> dgamma_d(gamma), dbeta_d(beta);
        const NormStatistics statistics{means_d, deviations_d};
        ops.layer_norm_forward(shape, x_d, gamma_d.view(), beta_d.view(), y_d, statistics, arena_);
        expect_bits(y_d.read(), y, "norm");
        expect_bits(means_d.read(), means, "means");
        expect_bits(deviations_d.read(), deviations, "deviations");
        ops.layer_norm_backward(shape, x_d, statistics, gamma_d.view(), dy_d, dx_d, dgamma_d.into(true),
                                dbeta_d.into(), arena_);
        expect_bits(dx_d.read(), dx, "dx");
        expect_bits(dgamma_d.read(), dgamma, "dgamma");
        expect_bits(dbeta_d.read(), dbeta, "dbeta");
      });
    }
  });
}

TEST_F(CudaKernels, RootMeanSquareNormHasTheHostsBits) {
  for (const NormShape& shape : {NormShape{1, 1}, NormShape{67, 33, 1e-6f}, NormShape{130, 64}}) {
    const uint64_t count = shape.rows * shape.width;
    const std::vector<float> x = random_values(count, 1), dy = random_values(count, 2);
    const std::vector<Bf16> gamma = rounded_to<Bf16>(random_values(shape.width, 3));
    std::vector<float> y(count), roots(shape.rows), dx = random_values(count, 5);
    const std::vector<float> dx_before = dx;
    std::vector<float> dgamma = random_values(shape.width, 6);
    const std::vector<float> dgamma_before = dgamma;
    host_.rms_norm_forward(shape, x, view(gamma), y, {{}, roots}, host_work_.arena());
    host_.rms_norm_backward(shape, x, {{}, roots}, view(gamma), dy, dx, into(dgamma, true),
                            host_work_.arena());
    in_every_way([&](const CudaOps& ops) {
      const OnDevice<float> x_d(x), dy_d(dy);
      const OnDevice<Bf16> gamma_d(gamma);
      OnDevice<float> y_d(count), roots_d(shape.rows), dx_d(dx_before);
      OnDevice<float> dgamma_d(dgamma_before);
      ops.rms_norm_forward(shape, x_d, gamma_d.view(), y_d, {{}, roots_d}, arena_);
      expect_bits(y_d.read(), y, "norm");
      ops.rms_norm_backward(shape, x_d, {{}, roots_d}, gamma_d.view(), dy_d, dx_d, dgamma_d.into(true),
                            arena_);
      expect_bits(dx_d.read(), dx, "dx");
      expect_bits(dgamma_d.read(), dgamma, "dgamma");
    });
  }
}

}  // namespace
}  // namespace terrace::testing::rows_test
