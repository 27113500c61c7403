// Steps of whole matrices: the bits of the specification on any number of threads and any processor, and that
// they are near the orthogonal matrix.
#include <terrace/optimizer_cpu/products/newton_schulz.h>

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "support/plain_newton_schulz.h"

namespace terrace::newton_schulz_test {
namespace {

using testing::orthogonalised_plainly;
using testing::Values;

Values drawn(const MatrixShape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  Values values(shape.rows * shape.columns);
  for (float& value : values) value = testing::rounded_to_bf16(normal(random));
  return values;
}

Values made(const Values& u, const MatrixShape& shape, const OptimizerSettings& settings, Workers& workers,
            InstructionSet set, ProductType type = ProductType::fp32) {
  return testing::orthogonalised(u, shape, settings, NewtonSchulz(workers, set, type));
}

constexpr OptimizerSettings kMuon{.kind = OptimizerKind::muon, .eps = 1e-7, .momentum = 0.95};

TEST(NewtonSchulz, HasTheBitsOfItsFormulas) {
  for (const MatrixShape shape : {MatrixShape{24, 24}, {7, 65}, {130, 33}, {1, 50}, {50, 1}, {260, 300}}) {
    SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
    const Values u = drawn(shape, 3);
    const Values expected = orthogonalised_plainly(u, shape, kMuon);
    for (const InstructionSet set : {InstructionSet::scalar, InstructionSet::avx2, InstructionSet::avx512}) {
      if (!is_supported(set)) continue;
      for (const size_t threads : {1, 2, 3}) {
        Workers workers(threads);
        EXPECT_EQ(made(u, shape, kMuon, workers, set), expected) << name_of(set) << ", " << threads;
      }
    }
  }
}

// Other products have their own order of summing, which is the same on every processor.
TEST(NewtonSchulz, HasTheSameBitsEverywhereWithEveryTypeOfProducts) {
  const MatrixShape shape{70, 110};
  const Values u = drawn(shape, 9);
  Workers one(1), three(3);
  const Values plain = made(u, shape, kMuon, one, InstructionSet::scalar);
  for (const ProductType type : {ProductType::bf16, ProductType::bf16_amx}) {
    const Values expected = made(u, shape, kMuon, one, InstructionSet::scalar, type);
    for (const InstructionSet set : {InstructionSet::avx2, InstructionSet::avx512}) {
      if (is_supported(set)) {
        EXPECT_EQ(made(u, shape, kMuon, three, set, type), expected) << name_of(set);
      }
    }
    for (size_t e = 0; e < plain.size(); ++e) EXPECT_NEAR(expected[e], plain[e], 0.03f) << e;
  }
}

// The singular values of such an o are between 0.7 and 1.2 or so (Jordan et al.), whatever they were in u.
TEST(NewtonSchulz, MakesRowsNearlyOrthogonal) {
  Workers workers(2);
  const MatrixShape shape{16, 64};
  Values u = drawn(shape, 5);
  for (uint64_t e = 0; e < u.size(); ++e)
    u[e] *= e / 64 == 3 ? 100.0f : 1.0f;  // one row outweighs all others
  const Values o = made(u, shape, kMuon, workers, best_instruction_set());
  for (uint64_t r = 0; r < shape.rows; ++r) {
    for (uint64_t s = 0; s <= r; ++s) {
      float dot = 0;
      for (uint64_t c = 0; c < shape.columns; ++c) dot += o[r * shape.columns + c] * o[s * shape.columns + c];
      EXPECT_NEAR(dot, r == s ? 0.95f : 0.0f, r == s ? 0.6f : 0.35f) << r << ", " << s;
    }
  }
}

TEST(NewtonSchulz, MakesNothingOfNothing) {
  Workers workers(1);
  const MatrixShape shape{8, 20};
  const Values zeros(shape.rows * shape.columns, 0.0f);
  EXPECT_EQ(made(zeros, shape, kMuon, workers, best_instruction_set()), zeros);
}

TEST(NewtonSchulz, TakesItsIterationsAndCoefficientsFromTheSettings) {
  Workers workers(1);
  const MatrixShape shape{12, 20};
  const Values u = drawn(shape, 7);
  OptimizerSettings other = kMuon;
  other.muon = {.iterations = 2, .a = 2, .b = -1.5, .c = 0.5};
  const Values expected = orthogonalised_plainly(u, shape, other);
  EXPECT_EQ(made(u, shape, other, workers, best_instruction_set()), expected);
  EXPECT_NE(expected, orthogonalised_plainly(u, shape, kMuon));
}

}  // namespace
}  // namespace terrace::newton_schulz_test
