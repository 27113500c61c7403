#include <terrace/reference/model/transformer/internal/rotary.h>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace terrace::decoder::rotary_test {
namespace {

// What transformers 5.23 computes for heads of 16 elements and 64 positions: all frequencies, and the cosine
// and sine of pair 3 at position 37.
struct Expected {
  std::string name;
  double theta;
  RopeScaling rope;
  uint64_t sequence;
  std::vector<float> frequencies;
  float cosine, sine;
};

RopeScaling scaling(RopeScalingKind kind, double factor) {
  RopeScaling rope;
  rope.kind = kind;
  rope.factor = factor;
  rope.original_context = 64;
  return rope;
}

std::vector<Expected> expectations() {
  RopeScaling cut = scaling(RopeScalingKind::yarn, 4.0);
  cut.truncate = false;
  cut.beta_fast = 8.0, cut.beta_slow = 2.0, cut.attention_factor = 0.9;
  const std::vector<float> plain = {1.0f,           0.316227764f,   0.100000001f,   0.0316227786f,
                                    0.00999999978f, 0.00316227786f, 0.00100000005f, 0.000316227786f};
  return {
      {"none", 1e4, {}, 64, plain, 0.390112311f, 0.920767307f},
      {"linear",
       1e4,
       scaling(RopeScalingKind::linear, 2.5),
       64,
       {0.400000006f, 0.1264911f, 0.0399999991f, 0.0126491114f, 0.00399999972f, 0.00126491114f,
        0.000400000019f, 0.000126491112f},
       0.892464519f,
       0.451117545f},
      {"dynamic, short", 1e4, scaling(RopeScalingKind::dynamic, 2.0), 64, plain, 0.390112311f, 0.920767307f},
      {"dynamic, long",
       1e4,
       scaling(RopeScalingKind::dynamic, 2.0),
       200,
       {1.0f, 0.249528468f, 0.0622644536f, 0.0155367535f, 0.00387686281f, 0.000967387517f, 0.000241390735f,
        6.02338623e-05f},
       0.839268506f,
       0.543717206f},
      {"llama3",
       5e5,
       scaling(RopeScalingKind::llama3, 8.0),
       64,
       {1.0f, 0.079403013f, 0.00470075384f, 0.000911583134f, 0.000176776681f, 3.42810235e-05f,
        6.64786967e-06f, 1.28917316e-06f},
       0.999431252f,
       0.0337221809f},
      {"yarn",
       1e4,
       scaling(RopeScalingKind::yarn, 4.0),
       64,
       {1.0f, 0.237170815f, 0.049999997f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
        7.90569466e-05f},
       1.09026384f,
       0.328331947f},
      {"yarn, not truncated",
       1e4,
       cut,
       64,
       {1.0f, 0.160589159f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
        7.90569466e-05f},
       0.86177063f,
       0.259521455f},
  };
}

TEST(Rotary, TurnsAsTransformersDoesWithEveryScaling) {
  for (const Expected& expected : expectations()) {
    ModelConfig config;
    config.head_size = 16;
    config.rope_theta = expected.theta;
    config.rope = expected.rope;
    std::vector<float> frequencies(8), cosines(expected.sequence * 8), sines(cosines.size());
    fill_rotary_frequencies(config, expected.sequence, frequencies);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(frequencies[i], expected.frequencies[i], 3e-7f * expected.frequencies[i]) << expected.name;
    }
    fill_rotary_table(config, 0, frequencies, cosines, sines);
    EXPECT_NEAR(cosines[37 * 8 + 3], expected.cosine, 1e-6) << expected.name;
    EXPECT_NEAR(sines[37 * 8 + 3], expected.sine, 1e-6) << expected.name;
    std::vector<float> later_cosines(2 * 8), later_sines(2 * 8);
    fill_rotary_table(config, 36, frequencies, later_cosines, later_sines);
    EXPECT_EQ(later_cosines[8 + 3], cosines[37 * 8 + 3]) << expected.name;
    EXPECT_EQ(later_sines[8 + 3], sines[37 * 8 + 3]) << expected.name;
  }
}

}  // namespace
}  // namespace terrace::decoder::rotary_test
