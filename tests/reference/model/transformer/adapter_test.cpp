#include <terrace/reference/model/transformer/adapter.h>

#include <gtest/gtest.h>

#include <vector>

namespace terrace::transformer_adapter_test {
namespace {

std::vector<float> pattern(uint64_t count, uint32_t factor) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(static_cast<int>(i * factor % 23) - 11) / 8.0f;
  return values;
}

// Small multiples of 1/64: every sum is exact.
TEST(MergeAdapter, AddsTheProductWhicheverWayTheWeightLies) {
  for (const bool outputs_first : {true, false}) {
    const AdapterSpec adapter{
        .module = {}, .inputs = 7, .outputs = 5, .rank = 3, .scale = 0.5f, .outputs_first = outputs_first};
    const std::vector<float> a = pattern(3 * 7, 5), b = pattern(5 * 3, 7), weight = pattern(5 * 7, 3);
    std::vector<float> merged = weight;
    merge_adapter(adapter, a, b, 0, merged);
    for (uint64_t o = 0; o < 5; ++o) {
      for (uint64_t i = 0; i < 7; ++i) {
        float product = 0;
        for (uint64_t r = 0; r < 3; ++r) product += b[o * 3 + r] * a[r * 7 + i];
        const uint64_t at = outputs_first ? o * 7 + i : i * 5 + o;
        EXPECT_EQ(merged[at], weight[at] + 0.5f * product) << o << " " << i;
      }
    }
  }
}

TEST(MergeAdapter, DoesNotDependOnHowTheWeightIsCut) {
  for (const bool outputs_first : {true, false}) {
    const AdapterSpec adapter{
        .module = {}, .inputs = 31, .outputs = 17, .rank = 4, .scale = 0.3f, .outputs_first = outputs_first};
    const std::vector<float> a = pattern(4 * 31, 5), b = pattern(17 * 4, 7), weight = pattern(17 * 31, 3);
    std::vector<float> whole = weight, pieces = weight;
    merge_adapter(adapter, a, b, 0, whole);
    for (uint64_t first = 0; first < pieces.size(); first += 13) {
      const uint64_t count = std::min<uint64_t>(13, pieces.size() - first);
      merge_adapter(adapter, a, b, first, std::span(pieces).subspan(first, count));
    }
    EXPECT_EQ(pieces, whole);
  }
}

}  // namespace
}  // namespace terrace::transformer_adapter_test
