// Attention in tiles: what its rows depend on, and how much memory it takes.
#include <gtest/gtest.h>

#include <vector>

#include "compute_test_support.h"

namespace terrace::testing::host_attention_test {
namespace {

constexpr uint64_t kWorkBytes = 16 * kMiB;

struct Rows {
  std::vector<float> y, log_sums;
};

// Queries, keys and values of one sample, its heads sharing keys and values in pairs.
class HostAttention : public ForEachInstructionSet {
 protected:
  static constexpr uint64_t kHeads = 4, kShared = 2, kSize = 6, kTokens = 530;

  // The rows of the queries [first, first + count), with the keys up to their last; those after it are spare.
  Rows attend(const HostOps& ops, uint64_t first, uint64_t count) {
    const AttentionShape shape{.batch = 1,
                               .sequence = count,
                               .heads = kHeads,
                               .key_value_heads = kShared,
                               .head_size = kSize,
                               .past = first,
                               .spare = kTokens - first - count};
    const uint64_t q = shape.query_width(), kv = shape.key_value_width();
    const auto part = [](const std::vector<float>& all, uint64_t begin, uint64_t size) {
      return std::span<const float>(all).subspan(begin, size);
    };
    Rows rows{std::vector<float>(count * q), std::vector<float>(count * kHeads)};
    ops.attention_forward(shape,
                          {part(queries_, first * q, count * q), part(keys_, 0, (first + count) * kv),
                           part(values_, 0, (first + count) * kv), q, kv},
                          rows.y, rows.log_sums, work_.arena());
    return rows;
  }

  const std::vector<float> queries_ = random_values(kTokens * kHeads * kSize, 1, 3.0f);
  const std::vector<float> keys_ = random_values(kTokens * kShared * kSize, 2);
  const std::vector<float> values_ = random_values(kTokens * kShared * kSize, 3);
  Workers workers_{2};
  WorkMemory work_{kWorkBytes};
};

TEST_P(HostAttention, ARowDependsOnWhatItSeesAlone) {
  for (const ProductType type : {ProductType::fp32, ProductType::bf16, ProductType::bf16_amx}) {
    const HostOps ops(workers_, GetParam(), type);
    const Rows all = attend(ops, 0, kTokens);
    for (const uint64_t first : {0, 1, 95, 191, 192, 255, 256, 300, 511, 512, 529}) {
      for (const uint64_t count : {uint64_t{1}, uint64_t{2}, uint64_t{200}}) {
        if (first + count > kTokens) continue;
        const Rows some = attend(ops, first, count);
        const uint64_t width = kHeads * kSize;
        for (uint64_t i = 0; i < some.y.size(); ++i)
          ASSERT_EQ(some.y[i], all.y[first * width + i])
              << name_of(type) << ", " << count << " from " << first;
        for (uint64_t head = 0; head < kHeads; ++head) {
          for (uint64_t row = 0; row < count; ++row)
            ASSERT_EQ(some.log_sums[head * count + row], all.log_sums[head * kTokens + first + row]);
        }
      }
    }
  }
}

TEST_P(HostAttention, TakesNoMoreMemoryForALongerSequence) {
  const HostOps ops(workers_, GetParam(), ProductType::fp32, true);
  const auto bytes_of = [&](uint64_t tokens, bool backward) {
    const AttentionShape shape{
        .batch = 1, .sequence = tokens, .heads = 2, .key_value_heads = 2, .head_size = 64};
    const auto rows = [&]<typename Float>(Float*) {
      const std::span<Float> all(static_cast<Float*>(nullptr), tokens * 128);
      return AttentionRows<Float>{all, all, all, 128, 128};
    };
    const auto inputs = rows(static_cast<const float*>(nullptr));
    const std::span<float> y(static_cast<float*>(nullptr), tokens * 128),
        log_sums(static_cast<float*>(nullptr), tokens * 2);
    StackArena arena = StackArena::dry_run();
    if (backward) {
      ops.attention_backward(shape, inputs, y, log_sums, y, rows(static_cast<float*>(nullptr)), arena);
    } else {
      ops.attention_forward(shape, inputs, y, log_sums, arena);
    }
    return arena.peak_bytes();
  };
  for (const bool backward : {false, true}) EXPECT_EQ(bytes_of(512, backward), bytes_of(1 << 20, backward));
}

INSTANTIATE_TEST_SUITE_P(Sets, HostAttention,
                         ::testing::ValuesIn(supported_instruction_sets().begin(),
                                             supported_instruction_sets().end()),
                         set_name);

}  // namespace
}  // namespace terrace::testing::host_attention_test
