// What touches the vocabulary: embeddings, the loss and logits, whole and in parts.
#include <gtest/gtest.h>

#include <vector>

#include "compute_test_support.h"
#include "reference_ops.h"

namespace terrace::testing::ops_vocabulary_test {
namespace {

using reference::Values;
using reference::widened;

template <typename T>
std::span<const T> rows_from(const std::vector<T>& values, uint64_t first_element) {
  return std::span<const T>(values).subspan(first_element);
}
template <typename T>
ParameterView view_from(const std::vector<T>& values, uint64_t first_element) {
  const auto part = rows_from(values, first_element);
  return {reinterpret_cast<const std::byte*>(part.data()), type_of(T{})};
}

// The parts of a table: `part` rows each, the last one shorter.
template <typename Body>
void for_parts(uint64_t rows, uint64_t part, Body body) {
  for (uint64_t first = 0; first < rows; first += part) body(first, std::min(part, rows - first));
}

class VocabularyOperation : public Operation {
 protected:
  struct Loss {
    float loss = 0;
    std::vector<float> log_sums, dx, dweight;
    bool operator==(const Loss&) const = default;
  };

  Loss loss_of(const std::vector<float>& x, const std::vector<float>& weight, uint64_t width,
               const std::vector<int32_t>& targets, float loss_scale, uint64_t part_rows) {
    Loss result;
    result.log_sums.resize(targets.size());
    result.dx.assign(x.size(), 7.0f);
    result.dweight.resize(weight.size());
    std::vector<RunningLoss> running(targets.size());
    for_parts(weight.size() / width, part_rows, [&](uint64_t first, uint64_t rows) {
      ops_.cross_entropy_forward({targets.size(), width, first, rows}, x, view_from(weight, first * width),
                                 targets, running, work_.arena());
    });
    ops_.cross_entropy_loss(running, result.log_sums, std::span<float, 1>(&result.loss, 1));
    for_parts(weight.size() / width, part_rows, [&](uint64_t first, uint64_t rows) {
      GradientTarget gradient = into(result.dweight);
      gradient.view.data += first * width * sizeof(float);
      ops_.cross_entropy_backward({targets.size(), width, first, rows}, x, view_from(weight, first * width),
                                  targets, result.log_sums, loss_scale, result.dx, gradient, work_.arena());
    });
    return result;
  }
};

TEST_P(VocabularyOperation, EmbeddingMatchesDoublePrecisionForwardAndBackward) {
  const uint64_t batch = 3, sequence = 11, width = 21, vocabulary = 70, context = 13;
  const PositionShape position_shape{batch, sequence, width, context};
  const std::vector<int32_t> tokens = random_tokens(batch * sequence, 20, 1);  // some often, most never
  const std::vector<float> table = random_values(vocabulary * width, 2);
  const std::vector<float> positions = random_values(context * width, 3);
  const std::vector<float> dy = random_values(tokens.size() * width, 4);
  Values table_ref = widened(table), positions_ref = widened(positions);
  const auto embed = [&] { return reference::embedding(tokens, table_ref, positions_ref, sequence, width); };
  for (const uint64_t part : {vocabulary, uint64_t{7}}) {
    std::vector<float> y(dy.size());
    for_parts(vocabulary, part, [&](uint64_t first, uint64_t rows) {
      ops_.embedding_forward({tokens.size(), width, first, rows}, tokens, view_from(table, first * width), y);
    });
    ops_.position_forward(position_shape, view(positions), y, work_.arena());
    expect_near(y, embed(), 1e-7, "embedding");
    const auto embed_rounded = [&](const auto& rounded_table, const auto& rounded_positions) {
      for_parts(vocabulary, part, [&](uint64_t first, uint64_t rows) {
        ops_.embedding_forward({tokens.size(), width, first, rows}, tokens,
                               view_from(rounded_table, first * width), y);
      });
      ops_.position_forward(position_shape, view(rounded_positions), y, work_.arena());
    };
    embed_rounded(rounded_to<Bf16>(table), rounded_to<Bf16>(positions));
    expect_near(y, embed(), 1e-2, "bf16 embedding");
    embed_rounded(rounded_to<Fp16>(table), rounded_to<Fp16>(positions));
    expect_near(y, embed(), 1.5e-3, "fp16 embedding");

    std::vector<uint32_t> ends(vocabulary + 1), places(tokens.size());
    const TokenOrder order{ends, places};
    ops_.order_tokens(tokens, order);
    const auto gradients = [&](std::vector<float>& dtable, std::vector<float>& dpositions, bool accumulate) {
      for_parts(vocabulary, part, [&](uint64_t first, uint64_t rows) {
        GradientTarget gradient = into(dtable, accumulate);
        gradient.view.data += first * width * sizeof(float);
        ops_.embedding_backward({tokens.size(), width, first, rows}, order, dy, gradient, work_.arena());
      });
      ops_.position_backward(position_shape, dy, into(dpositions, accumulate), work_.arena());
    };
    std::vector<float> dtable(table.size(), 9.0f), dpositions(positions.size(), 9.0f);
    gradients(dtable, dpositions, false);
    const auto loss = [&] { return reference::dot(embed(), dy); };
    reference::expect_gradient(dtable, table_ref, loss, 1e-3, "dtable", table.size());
    reference::expect_gradient(dpositions, positions_ref, loss, 1e-3, "dpositions", positions.size());
    std::vector<float> added_table = table, added_positions = positions;
    gradients(added_table, added_positions, true);
    for (size_t i = 0; i < table.size(); ++i) ASSERT_EQ(added_table[i], table[i] + dtable[i]);
    for (size_t i = 0; i < positions.size(); ++i) ASSERT_EQ(added_positions[i], positions[i] + dpositions[i]);
  }
}

TEST_P(VocabularyOperation, CrossEntropyMatchesDoublePrecisionForwardAndBackward) {
  const uint64_t tokens = 19, width = 14, vocabulary = 133;
  const std::vector<float> x = random_values(tokens * width, 1);
  const std::vector<float> weight = random_values(vocabulary * width, 2);
  const std::vector<int32_t> targets = random_tokens(tokens, vocabulary, 3);
  const float loss_scale = 512.0f;
  const Loss found = loss_of(x, weight, width, targets, loss_scale, vocabulary);
  Values x_ref = widened(x), weight_ref = widened(weight);
  EXPECT_NEAR(found.loss, reference::cross_entropy(x_ref, weight_ref, targets), 1e-5);
  const auto scaled_loss = [&] { return loss_scale * reference::cross_entropy(x_ref, weight_ref, targets); };
  reference::expect_gradient(found.dx, x_ref, scaled_loss, 1e-3, "dx", x.size());
  reference::expect_gradient(found.dweight, weight_ref, scaled_loss, 1e-3, "dweight", 100);
}

// 4096 tokens leave 1024 columns for a tile: this vocabulary takes two.
TEST_P(VocabularyOperation, CrossEntropyHasTheSameBitsHoweverTheTableIsCut) {
  const uint64_t width = 2, vocabulary = 1100;
  for (const uint64_t tokens : {uint64_t{4096}, uint64_t{30}}) {
    const std::vector<float> x = random_values(tokens * width, 1);
    const std::vector<float> weight = random_values(vocabulary * width, 2);
    const std::vector<int32_t> targets = random_tokens(tokens, vocabulary, 3);
    const Loss whole = loss_of(x, weight, width, targets, 4096.0f, vocabulary);
    EXPECT_EQ(loss_of(x, weight, width, targets, 4096.0f, 128), whole);
    EXPECT_EQ(loss_of(x, weight, width, targets, 4096.0f, 640), whole);
  }
}

TEST_P(VocabularyOperation, CrossEntropyLeavesOutWhatNobodyWants) {
  const uint64_t tokens = 9, width = 4, vocabulary = 300;
  const std::vector<float> x = random_values(tokens * width, 1);
  const std::vector<float> weight = random_values(vocabulary * width, 2);
  const std::vector<int32_t> targets = random_tokens(tokens, vocabulary, 3);
  const Loss both = loss_of(x, weight, width, targets, 1.0f, vocabulary);
  const VocabularyShape shape{tokens, width, 0, vocabulary};
  std::vector<float> dx(x.size()), dweight(weight.size());
  ops_.cross_entropy_backward(shape, x, view(weight), targets, both.log_sums, 1.0f, dx, {}, work_.arena());
  EXPECT_EQ(dx, both.dx);
  ops_.cross_entropy_backward(shape, x, view(weight), targets, both.log_sums, 1.0f, {}, into(dweight),
                              work_.arena());
  EXPECT_EQ(dweight, both.dweight);
}

TEST_P(VocabularyOperation, LossIsNotANumberWhenALogitIsNot) {
  const std::vector<float> x = {1.0f, 1.0f};
  const std::vector<int32_t> targets = {0, 1};
  for (const size_t place : {size_t{0}, size_t{17}, size_t{339}}) {
    std::vector<float> weight(340, 0.5f);
    weight[place] = std::nanf("");
    EXPECT_TRUE(std::isnan(loss_of(x, weight, 1, targets, 1.0f, 340).loss));
  }
}

TEST_P(VocabularyOperation, LogitsAreTheProductInEveryPart) {
  const uint64_t tokens = 3, width = 20, vocabulary = 300;
  const std::vector<float> x = random_values(tokens * width, 1);
  const std::vector<float> weight = random_values(vocabulary * width, 2);
  std::vector<float> logits(tokens * vocabulary);
  for_parts(vocabulary, 128, [&](uint64_t first, uint64_t rows) {
    ops_.logits({tokens, width, first, rows}, x, view_from(weight, first * width), vocabulary, logits,
                work_.arena());
  });
  expect_near(logits, reference::linear_of_rows(widened(x), widened(weight), vocabulary, {}), 1e-5, "logits");
}

INSTANTIATE_TEST_SUITE_P(Sets, VocabularyOperation,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

}  // namespace
}  // namespace terrace::testing::ops_vocabulary_test
