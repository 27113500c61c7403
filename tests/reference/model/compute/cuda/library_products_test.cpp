// Products by the library beside the plain ones: near each other for every shape, orientation, stride and
// type, whatever scratch memory there is.
#include <terrace/reference/model/compute/cuda/library_products.h>

#include "cuda_cases.h"
#include "library_under_test.h"

namespace terrace::testing::library_products_test {
namespace {

class LibraryProductsTest : public CudaKernels {
 protected:
  void SetUp() override {
    if (library_.calls() == nullptr) GTEST_SKIP() << library_.why_none();
  }

  // Stored in `lines` lines of `width`, with something else behind each.
  static uint64_t elements_of(uint64_t lines, uint64_t width) { return lines * (width + kGap); }
  static Operand stored(const void* data, uint64_t width, bool transposed, DataType type) {
    return {data, width + kGap, type, transposed};
  }

  template <typename T>
  static std::vector<T> values(uint64_t count, uint64_t stream) {
    if constexpr (std::is_same_v<T, float>) {
      return random_values(count, stream);
    } else {
      return rounded_to<T>(random_values(count, stream));
    }
  }

  template <typename T>
  static void expect_alike(const OnDevice<T>& actual, const OnDevice<T>& expected, const char* what) {
    const double tolerance = std::is_same_v<T, float> ? 1e-5 : std::is_same_v<T, Fp16> ? 2e-3 : 1e-2;
    expect_close(as_floats(actual.read()), as_floats(expected.read()), tolerance, what);
  }

  // body(products, target of the product, memory) plainly, and by the library with no scratch memory at all,
  // with room for a few lines at a time, and for all at once; from the same target.
  template <typename T, typename Body>
  void compare(const std::vector<T>& before, const char* what, Body body) {
    OnDevice<T> plainly(before);
    body(products_, plainly, {});
    for (const size_t floats : {0, 500, 8192}) {
      SCOPED_TRACE(std::to_string(floats) + " floats of scratch");
      OnDevice<T> by_library(before);
      LibraryProducts products(*library_.calls(), products_, kWorkspaceBytes, log_);
      body(products, by_library, {workspace_, std::span<float>(scratch_).first(floats)});
      expect_alike(by_library, plainly, what);
    }
  }

  template <typename A, typename B>
  void check(const ProductShape& shape, bool a_turned, bool b_turned) {
    const uint64_t a_width = a_turned ? shape.rows : shape.depth,
                   b_width = b_turned ? shape.depth : shape.columns;
    OnDevice<A> a(values<A>(elements_of(a_turned ? shape.depth : shape.rows, a_width), 1));
    OnDevice<B> b(values<B>(elements_of(b_turned ? shape.columns : shape.depth, b_width), 2));
    OnDevice<float> bias(random_values(shape.columns, 3));
    const Operand a_d = stored(a.data(), a_width, a_turned, type_of(A{}));
    const Operand b_d = stored(b.data(), b_width, b_turned, type_of(B{}));
    for (const int start : {0, 1, 2}) {  // zeros, the bias, what is there
      compare(random_values(elements_of(shape.rows, shape.columns), 4), "product",
              [&](CudaProducts& products, OnDevice<float>& target, const ProductMemory& memory) {
                products.multiply(
                    {}, shape, a_d, b_d,
                    {target.data(), shape.columns + kGap, start == 2, start == 1 ? bias.data() : nullptr},
                    memory);
              });
    }
    for (const bool accumulate : {false, true}) {
      const auto into = [&](CudaProducts& products, auto& target, const ProductMemory& memory) {
        products.multiply_into({}, shape, a_d, b_d, target.into(accumulate), memory);
      };
      compare(values<float>(shape.rows * shape.columns, 5), "gradient in fp32", into);
      compare(values<Bf16>(shape.rows * shape.columns, 5), "gradient in bf16", into);
    }
  }

  static constexpr uint64_t kGap = 5;
  LibraryUnderTest library_;
  MemoryLog log_;
  static constexpr uint64_t kWorkspaceBytes = kMiB;
  const std::span<std::byte> workspace_ = taken_workspace(arena_, kWorkspaceBytes);
  OnDevice<float> scratch_{size_t{8192}};
};

TEST_F(LibraryProductsTest, AreThePlainOnes) {
  for (const ProductShape& shape : {ProductShape{1, 1, 1}, ProductShape{67, 34, 38}}) {
    for (const bool a_turned : {false, true}) {
      for (const bool b_turned : {false, true}) {
        SCOPED_TRACE((a_turned ? "a turned, " : "a, ") + std::string(b_turned ? "b turned" : "b"));
        check<float, float>(shape, a_turned, b_turned);
        check<float, Bf16>(shape, a_turned, b_turned);
        check<Fp16, float>(shape, a_turned, b_turned);
        check<Bf16, Bf16>(shape, a_turned, b_turned);
      }
    }
  }
}

}  // namespace
}  // namespace terrace::testing::library_products_test
