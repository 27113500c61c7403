// Attention: near the host's forward pass, the bits of its backward pass.
#include "cuda_cases.h"

#include <limits>

#include "support/expect_error.h"
#include "support/sanitized.h"

namespace terrace::testing::attention_test {
namespace {

struct Problem {
  AttentionShape shape;
  std::vector<float> queries, keys, values, dy;
  std::vector<float> y, log_sums, dq, dk, dv;  // of the host

  Problem(const AttentionShape& of_shape, const HostOps& host, StackArena& arena)
      : shape(of_shape),
        queries(random_values(shape.tokens() * shape.query_width(), 1)),
        keys(random_values(shape.tokens() * shape.key_value_width(), 2)),
        values(random_values(keys.size(), 3)),
        dy(random_values(queries.size(), 4)),
        y(queries.size()),
        log_sums(shape.tokens() * shape.heads),
        dq(queries.size()),
        dk(keys.size()),
        dv(keys.size()) {
    const uint64_t q = shape.query_width(), kv = shape.key_value_width();
    const AttentionRows<const float> inputs{queries, keys, values, q, kv};
    host.attention_forward(shape, inputs, y, log_sums, arena);
    host.attention_backward(shape, inputs, y, log_sums, dy, {dq, dk, dv, q, kv}, arena);
  }
};

class CudaAttention : public CudaKernels {
 protected:
  void check(const AttentionShape& shape) {
    SCOPED_TRACE(std::to_string(shape.sequence) + " tokens, heads of " + std::to_string(shape.head_size));
    const Problem p(shape, host_, host_work_.arena());
    const uint64_t q = shape.query_width(), kv = shape.key_value_width();
    std::vector<float> first_y, first_log_sums;
    in_every_way([&](const CudaOps& ops) {
      const OnDevice<float> queries(p.queries), keys(p.keys), values(p.values), dy(p.dy), host_y(p.y);
      const OnDevice<float> host_log_sums(p.log_sums);
      OnDevice<float> y(p.y.size()), log_sums(p.log_sums.size());
      OnDevice<float> dq(p.queries.size()), dk(p.keys.size()), dv(p.keys.size());
      const AttentionRows<const float> inputs{queries, keys, values, q, kv};
      ops.attention_forward(shape, inputs, y, log_sums, arena_);
      if (first_y.empty()) {
        first_y = y.read();
        first_log_sums = log_sums.read();
        expect_close(first_y, p.y, 2e-6, "y");
        expect_close(first_log_sums, p.log_sums, 1e-6, "log sums");
      }
      expect_bits(y.read(), first_y, "y in another way");
      expect_bits(log_sums.read(), first_log_sums, "log sums in another way");
      ops.attention_backward(shape, inputs, host_y, host_log_sums, dy, {dq, dk, dv, q, kv}, arena_);
      expect_gradient_of_host(dq.read(), p.dq, "dq");
      expect_gradient_of_host(dk.read(), p.dk, "dk");
      expect_gradient_of_host(dv.read(), p.dv, "dv");
    });
  }

  void expect_gradient_of_host(const std::vector<float>& actual, const std::vector<float>& expected,
                               const char* what) {
    if (host_fuses()) return expect_bits(actual, expected, what);
    expect_close(actual, expected, 1e-5, what);
  }
};

// Around the tiles of every size of head (64 rows up to 128 elements, 32 up to 256), and around their slices
// (32 elements, 16 rows).
TEST_F(CudaAttention, IsTheHostsForSizesAroundEveryTile) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, 1, 1, 1}, AttentionShape{2, 7, 6, 2, 5}, AttentionShape{1, 65, 2, 1, 33},
        AttentionShape{1, 64, 1, 1, 64}, AttentionShape{1, 130, 1, 1, 31}, AttentionShape{1, 17, 2, 2, 65},
        AttentionShape{2, 66, 1, 1, 128}, AttentionShape{1, 33, 3, 1, 129},
        AttentionShape{1, 32, 1, 1, 256}}) {
    // Threads of the emulator are slow under a sanitizer, and the smaller shapes have several tiles, too.
    if (kSanitized && shape.tokens() * shape.head_size > 2500) continue;
    check(shape);
  }
}

// By the dry run of a plan, too, which has no memory yet.
TEST_F(CudaAttention, RefusesLargerHeadsWithWhatWouldDo) {
  const AttentionShape shape{1, 1, 1, 1, 257};
  StackArena arena = StackArena::dry_run();
  const std::span<float> row(static_cast<float*>(nullptr), 257), log_sum(static_cast<float*>(nullptr), 1);
  const AttentionRows<const float> inputs{row, row, row, 257, 257};
  expect_error(ErrorKind::config, {"heads of 257 elements", "at most 256", "terrace.device simulated"}, [&] {
    CudaOps(products_, {}, {.dry_run = true}).attention_forward(shape, inputs, row, log_sum, arena);
  });
}

TEST_F(CudaAttention, TakesQueriesKeysAndValuesAsColumnsOfOneMatrix) {
  const AttentionShape shape{2, 5, 3, 3, 6};
  const uint64_t width = shape.query_width(), stride = 3 * width;
  const std::vector<float> qkv = random_values(shape.tokens() * stride, 1);
  std::vector<float> y(shape.tokens() * width), log_sums(shape.tokens() * shape.heads);
  const auto inputs_of = [&](std::span<const float> all) {
    return AttentionRows<const float>{all, all.subspan(width), all.subspan(2 * width), stride, stride};
  };
  host_.attention_forward(shape, inputs_of(qkv), y, log_sums, host_work_.arena());
  const OnDevice<float> device_qkv(qkv);
  OnDevice<float> device_y(y.size()), device_log_sums(log_sums.size());
  CudaOps(products_, {}).attention_forward(shape, inputs_of(device_qkv), device_y, device_log_sums, arena_);
  expect_close(device_y.read(), y, 2e-6, "y");
}

// What attention gives for `count` queries of each sample from `first` on, with the keys up to the last of
// them in rows that have room for `spare` more.
struct PartOfAttention {
  AttentionShape shape;
  std::vector<float> queries, keys, values;

  PartOfAttention(AttentionShape whole, const Problem& p, uint64_t first, uint64_t count, uint64_t spare)
      : shape(whole) {
    shape.sequence = count, shape.past = first, shape.spare = spare;
    const uint64_t q = shape.query_width(), kv = shape.key_value_width();
    const auto copy = [](const std::vector<float>& from, uint64_t begin, uint64_t size,
                         std::vector<float>& to) {
      to.insert(to.end(), from.begin() + static_cast<long>(begin),
                from.begin() + static_cast<long>(begin + size));
    };
    for (uint64_t sample = 0; sample < shape.batch; ++sample) {
      const uint64_t token = sample * whole.sequence;
      copy(p.queries, (token + first) * q, count * q, queries);
      copy(p.keys, token * kv, shape.key_tokens() * kv, keys);
      copy(p.values, token * kv, shape.key_tokens() * kv, values);
      keys.resize(keys.size() + spare * kv, std::numeric_limits<float>::quiet_NaN());
      values.resize(keys.size(), std::numeric_limits<float>::quiet_NaN());
    }
  }
};

TEST_F(CudaAttention, ARowDependsOnWhatItSeesAlone) {
  for (const AttentionShape& whole : {AttentionShape{2, 140, 2, 1, 6}, AttentionShape{1, 70, 1, 1, 129}}) {
    if (kSanitized && whole.head_size > 6) continue;
    const Problem p(whole, host_, host_work_.arena());
    const uint64_t q = whole.query_width(), kv = whole.key_value_width();
    const OnDevice<float> queries(p.queries), keys(p.keys), values(p.values);
    OnDevice<float> y(p.y.size()), log_sums(p.log_sums.size());
    const CudaOps ops(products_, {});
    ops.attention_forward(whole, {queries, keys, values, q, kv}, y, log_sums, arena_);
    const std::vector<float> all = y.read(), all_sums = log_sums.read();
    for (const uint64_t first : {0, 1, 31, 40, 63, 64, 69, 127, 139}) {
      for (const uint64_t count : {uint64_t{1}, uint64_t{30}}) {
        if (first + count > whole.sequence) continue;
        SCOPED_TRACE(std::to_string(count) + " from " + std::to_string(first));
        const PartOfAttention part(whole, p, first, count, first % 3);
        const OnDevice<float> some_queries(part.queries), some_keys(part.keys), some_values(part.values);
        OnDevice<float> some_y(part.queries.size()), some_sums(part.shape.tokens() * whole.heads);
        ops.attention_forward(part.shape, {some_queries, some_keys, some_values, q, kv}, some_y, some_sums,
                              arena_);
        const std::vector<float> found = some_y.read(), found_sums = some_sums.read();
        for (uint64_t sample = 0; sample < whole.batch; ++sample) {
          for (uint64_t i = 0; i < count * q; ++i)
            ASSERT_EQ(found[sample * count * q + i], all[(sample * whole.sequence + first) * q + i]);
          for (uint64_t i = 0; i < whole.heads * count; ++i) {
            const uint64_t head = sample * whole.heads + i / count;
            ASSERT_EQ(found_sums[head * count + i % count],
                      all_sums[head * whole.sequence + first + i % count]);
          }
        }
      }
    }
  }
}

// Scores so far apart that whole tiles of weights vanish, and a largest score that comes last.
TEST_F(CudaAttention, KeepsItsScaleWhenScoresGrowAlongTheRow) {
  const AttentionShape shape{1, 70, 1, 1, 4};
  std::vector<float> queries(280, 1.0f), keys(280), values = random_values(280, 1);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<float>(i / 4) * 5.0f;
  std::vector<float> y(280), log_sums(70);
  host_.attention_forward(shape, {queries, keys, values, 4, 4}, y, log_sums, host_work_.arena());
  const OnDevice<float> q(queries), k(keys), v(values);
  OnDevice<float> device_y(280), device_log_sums(70);
  CudaOps(products_, {}).attention_forward(shape, {q, k, v, 4, 4}, device_y, device_log_sums, arena_);
  expect_close(device_y.read(), y, 2e-6, "y");
  expect_close(device_log_sums.read(), log_sums, 1e-6, "log sums");
}

}  // namespace
}  // namespace terrace::testing::attention_test
