// Products, and the layers that are products: the host's bits where the host has fused multiply-adds.
#include "cuda_cases.h"

namespace terrace::testing::products_test {
namespace {

class CudaProductsTest : public CudaKernels {
 protected:
  template <typename T>
  void expect_product(const std::vector<T>& actual, const std::vector<T>& expected, const char* what) {
    if (host_fuses()) return expect_bits(actual, expected, what);
    expect_close(as_floats(actual), as_floats(expected), 1e-5, what);
  }

  // a * b of every orientation, b in the type T, from zeros, from a bias, added, and into a gradient.
  template <typename T>
  void check_product(const ProductShape& shape, bool a_turned, bool b_turned) {
    const std::vector<float> a = random_values(shape.rows * shape.depth, 1);
    const std::vector<T> b = values_in<T>(random_values(shape.depth * shape.columns, 2));
    const std::vector<float> before = random_values(shape.rows * shape.columns, 3);
    const std::vector<float> bias = random_values(shape.columns, 4);
    const Products products(workers_, best_instruction_set());
    const GradientProducts gradient_products(products, best_instruction_set());
    const ThreadScratch scratch(host_work_.arena(), workers_, Products::workspace_floats());
    const auto operand = [](const void* data, uint64_t lines, uint64_t width, bool turned, DataType type) {
      return Operand{.data = data, .stride = turned ? lines : width, .type = type, .transposed = turned};
    };
    const auto a_of = [&](const void* data) {
      return operand(data, shape.rows, shape.depth, a_turned, DataType::fp32);
    };
    const auto b_of = [&](const void* data) {
      return operand(data, shape.depth, shape.columns, b_turned, type_of(T{}));
    };
    for (const int start : {0, 1, 2}) {  // zeros, the bias, what is there
      std::vector<float> c = before;
      products.multiply(shape, a_of(a.data()), b_of(b.data()),
                        {c.data(), shape.columns, start == 2, start == 1 ? bias.data() : nullptr}, scratch);
      OnDevice<float> a_d(a), c_d(before), bias_d(bias);
      OnDevice<T> b_d(b);
      const CudaLaunch where{.block_limit = start == 0 ? 3u : 1000u};
      run_threads_backwards(start == 1);
      products_.multiply(where, shape, a_of(a_d.data()), b_of(b_d.data()),
                         {c_d.data(), shape.columns, start == 2, start == 1 ? bias_d.data() : nullptr});
      run_threads_backwards(false);
      expect_product(c_d.read(), c, "product");
    }
    std::vector<T> gradient = values_in<T>(before);
    OnDevice<T> a_d(values_in<T>(a)), b_d(b), gradient_d(gradient);
    const std::vector<T> a_narrow = values_in<T>(a);
    Operand narrow = a_of(a_narrow.data()), narrow_d = a_of(a_d.data());
    narrow.type = narrow_d.type = type_of(T{});
    gradient_products.multiply(shape, narrow, b_of(b.data()), into(gradient, true), scratch);
    products_.multiply_into({}, shape, narrow_d, b_of(b_d.data()), gradient_d.into(true));
    expect_product(gradient_d.read(), gradient, "gradient");
  }

  // A linear layer that rounds its rows to the type of its weight: the host's chains over rows that were
  // rounded before, and near those over rows that were not.
  template <typename T>
  void check_rounded_layer(double unit_roundoff) {
    const LinearShape shape{37, 29, 71, true, true};
    const std::vector<float> x = random_values(37 * 29, 1), dy = random_values(37 * 71, 2);
    const std::vector<float> rounded_x = as_floats(rounded_to<T>(x)),
                             rounded_dy = as_floats(rounded_to<T>(dy));
    const std::vector<T> weight = rounded_to<T>(random_values(29 * 71, 3));
    const std::vector<T> bias = rounded_to<T>(random_values(71, 4));
    std::vector<float> y(dy.size()), dx = random_values(x.size(), 5), exact(dy.size()), unwanted(x.size());
    OnDevice<float> y_d(y.size()), dx_d(dx);
    std::vector<T> dweight = weight, dbias = bias;
    OnDevice<T> dweight_d(weight), dbias_d(bias);
    StackArena& work = host_work_.arena();
    host_.linear_forward(shape, x, view(weight), view(bias), exact, work);
    host_.linear_forward(shape, rounded_x, view(weight), view(bias), y, work);
    host_.linear_backward(shape, rounded_x, view(weight), rounded_dy, dx, HostOps::InputGradient::add,
                          into(dweight, true), {}, work);
    host_.linear_backward(shape, x, view(weight), dy, unwanted, HostOps::InputGradient::overwrite, {},
                          into(dbias), work);
    const OnDevice<float> x_d(x), dy_d(dy);
    const OnDevice<T> weight_d(weight), bias_d(bias);
    const CudaOps ops(products_, {}, {.rounds_rows = true});
    ops.linear_forward(shape, x_d, weight_d.view(), bias_d.view(), y_d, arena_);
    ops.linear_backward(shape, x_d, weight_d.view(), dy_d, dx_d, HostOps::InputGradient::add,
                        dweight_d.into(true), dbias_d.into(), arena_);
    expect_product(y_d.read(), y, "y");
    expect_product(dx_d.read(), dx, "dx");
    expect_product(dweight_d.read(), dweight, "dweight");
    expect_bits(dbias_d.read(), dbias, "dbias");
    EXPECT_NE(y_d.read(), exact);
    expect_within(y_d.read(), exact, x, as_floats(weight), shape, unit_roundoff);
  }

  // |actual - exact| <= unit roundoff * sum |x| |weight|, and what sums in fp32 may lose.
  static void expect_within(const std::vector<float>& actual, const std::vector<float>& exact,
                            const std::vector<float>& x, const std::vector<float>& weight,
                            const LinearShape& shape, double unit_roundoff) {
    for (uint64_t row = 0; row < shape.rows; ++row) {
      for (uint64_t column = 0; column < shape.outputs; ++column) {
        double size = 0;
        for (uint64_t k = 0; k < shape.inputs; ++k)
          size += std::abs(double{x[row * shape.inputs + k]} * weight[column * shape.inputs + k]);
        const uint64_t i = row * shape.outputs + column;
        ASSERT_LE(std::abs(double{actual[i]} - exact[i]), (unit_roundoff + 1e-5) * size + 1e-5) << i;
      }
    }
  }

  template <typename T>
  static std::vector<T> values_in(const std::vector<float>& values) {
    if constexpr (std::is_same_v<T, float>) {
      return values;
    } else {
      return rounded_to<T>(values);
    }
  }
};

TEST_F(CudaProductsTest, AreTheHostsChainsForEveryShapeOrientationAndType) {
  for (const ProductShape& shape : {ProductShape{1, 1, 1}, ProductShape{65, 63, 17},
                                    ProductShape{64, 129, 16}, ProductShape{3, 70, 33}}) {
    for (const bool a_turned : {false, true}) {
      for (const bool b_turned : {false, true}) {
        SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
        const StackArena::Frame frame(host_work_.arena());
        check_product<float>(shape, a_turned, b_turned);
        check_product<Bf16>(shape, a_turned, b_turned);
        check_product<Fp16>(shape, a_turned, b_turned);
      }
    }
  }
}

TEST_F(CudaProductsTest, LinearLayersAreTheHosts) {
  for (const bool outputs_first : {false, true}) {
    const LinearShape shape{37, 29, 71, outputs_first, true};
    const std::vector<float> x = random_values(37 * 29, 1), dy = random_values(37 * 71, 2);
    const std::vector<Bf16> weight = rounded_to<Bf16>(random_values(29 * 71, 3));
    const std::vector<Bf16> bias = rounded_to<Bf16>(random_values(71, 4));
    std::vector<float> y(dy.size()), dx = random_values(x.size(), 5);
    const std::vector<float> dx_before = dx;
    std::vector<Bf16> dweight = weight, dbias = bias;
    host_.linear_forward(shape, x, view(weight), view(bias), y, host_work_.arena());
    host_.linear_backward(shape, x, view(weight), dy, dx, HostOps::InputGradient::add, into(dweight, true),
                          into(dbias), host_work_.arena());
    const CudaOps ops(products_, {});
    const OnDevice<float> x_d(x), dy_d(dy);
    const OnDevice<Bf16> weight_d(weight), bias_d(bias);
    OnDevice<float> y_d(y.size()), dx_d(dx_before);
    OnDevice<Bf16> dweight_d(weight), dbias_d(bias);
    ops.linear_forward(shape, x_d, weight_d.view(), bias_d.view(), y_d, arena_);
    ops.linear_backward(shape, x_d, weight_d.view(), dy_d, dx_d, HostOps::InputGradient::add,
                        dweight_d.into(true), dbias_d.into(), arena_);
    expect_product(y_d.read(), y, "y");
    expect_product(dx_d.read(), dx, "dx");
    expect_product(dweight_d.read(), dweight, "dweight");
    expect_bits(dbias_d.read(), dbias, "dbias");
  }
}

TEST_F(CudaProductsTest, LayersOf16BitsMultiplyRowsRoundedToTheirType) {
  check_rounded_layer<Bf16>(0x1p-8);
  check_rounded_layer<Fp16>(0x1p-11);
}

// With u = scale * x A^T and du = scale * dy B, both rounded before they are multiplied again.
TEST_F(CudaProductsTest, AdaptersOf16BitsMultiplyRowsRoundedToTheirType) {
  const AdapterShape shape{19, 33, 45, 4, 1.5f};
  const auto rounded = [](const std::vector<float>& values) { return rounded_to<Bf16>(values); };
  const std::vector<float> x = random_values(19 * 33, 1), dy = random_values(19 * 45, 2);
  const std::vector<Bf16> a = rounded(random_values(4 * 33, 3)), b = rounded(random_values(45 * 4, 4));
  std::vector<float> y = random_values(dy.size(), 5), dx = random_values(x.size(), 6), u(19 * 4), du(19 * 4);
  std::vector<Bf16> da(a.size()), db(b.size());
  const OnDevice<float> x_d(x), dy_d(dy);
  const OnDevice<Bf16> a_d(a), b_d(b);
  OnDevice<float> y_d(y), dx_d(dx);
  OnDevice<Bf16> da_d(a.size()), db_d(b.size());
  const Products products(workers_, best_instruction_set());
  const GradientProducts gradient_products(products, best_instruction_set());
  const ThreadScratch scratch(host_work_.arena(), workers_, Products::workspace_floats());
  const auto narrow = [](const std::vector<Bf16>& values, uint64_t width, bool turned = false) {
    return Operand{values.data(), width, DataType::bf16, turned};
  };
  const std::vector<Bf16> rounded_x = rounded(x), rounded_dy = rounded(dy);
  products.multiply({19, 4, 33}, narrow(rounded_x, 33), narrow(a, 33, true), {u.data(), 4}, scratch);
  for (float& value : u) value *= shape.scale;
  const std::vector<Bf16> rounded_u = rounded(u);
  products.multiply({19, 45, 4}, narrow(rounded_u, 4), narrow(b, 4, true), {y.data(), 45, true}, scratch);
  gradient_products.multiply({45, 4, 19}, narrow(rounded_dy, 45, true), narrow(rounded_u, 4), into(db),
                             scratch);
  products.multiply({19, 4, 45}, narrow(rounded_dy, 45), narrow(b, 4), {du.data(), 4}, scratch);
  for (float& value : du) value *= shape.scale;
  const std::vector<Bf16> rounded_du = rounded(du);
  gradient_products.multiply({4, 33, 19}, narrow(rounded_du, 4, true), narrow(rounded_x, 33), into(da),
                             scratch);
  products.multiply({19, 33, 4}, narrow(rounded_du, 4), narrow(a, 33), {dx.data(), 33, true}, scratch);
  const CudaOps ops(products_, {}, {.rounds_rows = true});
  ops.adapter_forward(shape, x_d, a_d.view(), b_d.view(), y_d, arena_);
  ops.adapter_backward(shape, x_d, a_d.view(), b_d.view(), dy_d, dx_d, da_d.into(), db_d.into(), arena_);
  expect_product(y_d.read(), y, "y");
  expect_product(dx_d.read(), dx, "dx");
  expect_product(da_d.read(), da, "da");
  expect_product(db_d.read(), db, "db");
}

TEST_F(CudaProductsTest, AdaptersAreTheHosts) {
  const AdapterShape shape{19, 33, 45, 4, 1.5f};
  const std::vector<float> x = random_values(19 * 33, 1), dy = random_values(19 * 45, 2);
  const std::vector<float> a = random_values(4 * 33, 3), b = random_values(45 * 4, 4);
  std::vector<float> y = random_values(dy.size(), 5), dx = random_values(x.size(), 6), da(a.size()),
                     db(b.size());
  const OnDevice<float> x_d(x), dy_d(dy), a_d(a), b_d(b);
  OnDevice<float> y_d(y), dx_d(dx), da_d(a.size()), db_d(b.size());
  host_.adapter_forward(shape, x, view(a), view(b), y, host_work_.arena());
  host_.adapter_backward(shape, x, view(a), view(b), dy, dx, into(da), into(db), host_work_.arena());
  const CudaOps ops(products_, {});
  ops.adapter_forward(shape, x_d, a_d.view(), b_d.view(), y_d, arena_);
  ops.adapter_backward(shape, x_d, a_d.view(), b_d.view(), dy_d, dx_d, da_d.into(), db_d.into(), arena_);
  expect_product(y_d.read(), y, "y");
  expect_product(dx_d.read(), dx, "dx");
  expect_product(da_d.read(), da, "da");
  expect_product(db_d.read(), db, "db");
}

}  // namespace
}  // namespace terrace::testing::products_test
