#include <terrace/reference/model/transformer/sampling.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <terrace/base/error.h>

namespace terrace::sampling_test {
namespace {

// How often each token is drawn, of a thousand evenly spread numbers.
std::vector<int> counts(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<int> count(logits.size());
  for (int i = 0; i < 1000; ++i)
    ++count[static_cast<size_t>(sample_token(logits, options, (i + 0.5) / 1000))];
  return count;
}

const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

TEST(Sampling, DrawsTokensByTheirProbability) {
  EXPECT_EQ(counts(kLogits, {}), (std::vector<int>{100, 400, 200, 300}));
  // exp(2 log p) is p squared: 0.01, 0.16, 0.04, 0.09 of 0.30.
  EXPECT_EQ(counts(kLogits, {.temperature = 0.5}), (std::vector<int>{33, 533, 134, 300}));
}

TEST(Sampling, TakesTheMostLikelyTokenAtTemperatureZero) {
  EXPECT_EQ(counts(kLogits, {.temperature = 0}), (std::vector<int>{0, 1000, 0, 0}));
  EXPECT_EQ(sample_token(std::vector<float>{1, 5, 5, 2}, {.temperature = 0}, 0.9), 1);
}

TEST(Sampling, KeepsTheMostLikelyOnly) {
  EXPECT_EQ(counts(kLogits, {.top_k = 2}), (std::vector<int>{0, 571, 0, 429}));
  EXPECT_EQ(counts(kLogits, {.top_k = 1}), (std::vector<int>{0, 1000, 0, 0}));
  EXPECT_EQ(counts(kLogits, {.top_k = 99}), counts(kLogits, {}));
  EXPECT_EQ(counts(kLogits, {.top_p = 0.5}), counts(kLogits, {.top_k = 2}));  // 0.4 is less, 0.7 is not
  EXPECT_EQ(counts(kLogits, {.top_p = 0.8}), counts(kLogits, {.top_k = 3}));
  EXPECT_EQ(counts(kLogits, {.top_p = 0.0}), counts(kLogits, {.top_k = 1}));
}

TEST(Sampling, NeverDrawsWhatIsImpossible) {
  constexpr float kImpossible = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(counts({kImpossible, 0, kImpossible, 0}, {}), (std::vector<int>{0, 500, 0, 500}));
  EXPECT_EQ(sample_token(std::vector<float>{3e38f, -3e38f}, {.temperature = 1e-3}, 0.99), 0);
}

TEST(Sampling, RefusesLogitsThatAreNoNumbers) {
  const std::vector<float> logits = {0, std::numeric_limits<float>::quiet_NaN()};
  try {
    sample_token(logits, {}, 0.5);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.parts().subject, "token 1");
  }
}

}  // namespace
}  // namespace terrace::sampling_test
