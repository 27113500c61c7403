// Embeddings, positions and the loss.
#include "cuda_cases.h"

namespace terrace::testing::vocabulary_test {
namespace {

class CudaVocabulary : public CudaKernels {};

template <typename T>
std::vector<T> table_of(uint64_t count, uint64_t stream) {
  if constexpr (std::is_same_v<T, float>) {
    return random_values(count, stream);
  } else {
    return rounded_to<T>(random_values(count, stream));
  }
}

TEST_F(CudaVocabulary, OrdersTokensAsTheHostDoes) {
  for (const size_t count : {1u, 256u, 300u}) {
    const uint64_t vocabulary = 40;
    const std::vector<int32_t> tokens = random_tokens(count, vocabulary, count);
    std::vector<uint32_t> ends(vocabulary + 1), places(count);
    host_.order_tokens(tokens, {ends, places});
    in_every_way([&](const CudaOps& ops) {
      OnDevice<uint32_t> device_ends(ends.size()), device_places(count);
      ops.order_tokens(OnDevice<int32_t>(tokens), {device_ends, device_places});
      expect_bits(device_ends.read(), ends, "ends");
      expect_bits(device_places.read(), places, "places");
    });
  }
}

template <typename T>
void check_embedding(CudaVocabulary&, const HostOps& host, StackArena& host_arena, const CudaOps& ops,
                     uint64_t width) {
  const EmbeddingShape shape{.tokens = 70, .width = width, .first_row = 8, .rows = 21};
  const std::vector<int32_t> tokens = random_tokens(shape.tokens, 33, 5);
  const std::vector<T> table = table_of<T>(shape.rows * width, 1);
  const std::vector<float> before = random_values(shape.tokens * width, 2),
                           dy = random_values(before.size(), 3);
  std::vector<uint32_t> ends(34), places(shape.tokens);
  host.order_tokens(tokens, {ends, places});
  std::vector<float> y = before;
  host.embedding_forward(shape, tokens, view(table), y);
  OnDevice<float> y_d(before);
  ops.embedding_forward(shape, OnDevice<int32_t>(tokens), OnDevice<T>(table).view(), y_d);
  expect_bits(y_d.read(), y, "rows");
  OnDevice<uint32_t> ends_d(ends), places_d(places);
  StackArena none{std::span<std::byte>()};
  for (const bool accumulate : {false, true}) {
    std::vector<T> gradient = table;
    OnDevice<T> gradient_d(table);
    host.embedding_backward(shape, {ends, places}, dy, into(gradient, accumulate), host_arena);
    ops.embedding_backward(shape, {ends_d, places_d}, OnDevice<float>(dy), gradient_d.into(accumulate), none);
    expect_bits(gradient_d.read(), gradient, "gradient");
  }
}

TEST_F(CudaVocabulary, EmbeddingsHaveTheHostsBits) {
  in_every_way([&](const CudaOps& ops) {
    for (const uint64_t width : {5u, 12u}) {
      check_embedding<float>(*this, host_, host_work_.arena(), ops, width);
      check_embedding<Bf16>(*this, host_, host_work_.arena(), ops, width);
      check_embedding<Fp16>(*this, host_, host_work_.arena(), ops, width);
    }
  });
}

TEST_F(CudaVocabulary, PositionsHaveTheHostsBits) {
  for (const uint64_t width : {5u, 12u}) {
    const PositionShape shape{.batch = 3, .sequence = 7, .width = width, .context = 9};
    const std::vector<Bf16> table = table_of<Bf16>(shape.context * width, 1);
    std::vector<float> y = random_values(21 * width, 2);
    const std::vector<float> before = y, dy = random_values(y.size(), 3);
    std::vector<float> later_y = y;
    host_.position_forward(shape, view(table), y, host_work_.arena());
    PositionShape later = shape;
    later.first = 2;
    host_.position_forward(later, view(table), later_y, host_work_.arena());
    for (uint64_t i = 0; i < later_y.size(); ++i) {
      const uint64_t position = 2 + i / width % 7;
      ASSERT_EQ(later_y[i], before[i] + to_float(table[position * width + i % width]));
    }
    in_every_way([&](const CudaOps& ops) {
      OnDevice<float> y_d(before);
      ops.position_forward(shape, OnDevice<Bf16>(table).view(), y_d, arena_);
      expect_bits(y_d.read(), y, "rows");
      OnDevice<float> later_d(before);
      ops.position_forward(later, OnDevice<Bf16>(table).view(), later_d, arena_);
      expect_bits(later_d.read(), later_y, "rows of later tokens");
      for (const bool accumulate : {false, true}) {
        std::vector<Bf16> gradient = table;
        OnDevice<Bf16> gradient_d(table);
        host_.position_backward(shape, dy, into(gradient, accumulate), host_work_.arena());
        ops.position_backward(shape, OnDevice<float>(dy), gradient_d.into(accumulate), arena_);
        expect_bits(gradient_d.read(), gradient, "gradient");
      }
    });
  }
}

// The loss of a vocabulary in two parts, against the host's in the same parts: the running loss near it, and
// from the same log sums the bits of its gradients.
class CudaLoss : public CudaKernels {
 protected:
  template <typename T>
  void expect_product(const std::vector<T>& actual, const std::vector<T>& expected, const char* what) {
    if (host_fuses()) return expect_bits(actual, expected, what);
    expect_close(as_floats(actual), as_floats(expected), 1e-5, what);
  }

  static constexpr uint64_t kTokens = 37, kWidth = 12;
  static constexpr uint64_t kVocabulary = 300;
  static constexpr VocabularyShape kParts[] = {{kTokens, kWidth, 0, 256}, {kTokens, kWidth, 256, 44}};
  const std::vector<float> x_ = random_values(kTokens * kWidth, 1);
  const std::vector<Bf16> weight_ = rounded_to<Bf16>(random_values(kVocabulary * kWidth, 2));
  const std::vector<int32_t> targets_ = random_tokens(kTokens, kVocabulary, 3);
};

TEST_F(CudaLoss, IsTheHostsLossPartByPart) {
  std::vector<RunningLoss> running(kTokens);
  std::vector<float> log_sums(kTokens), first_log_sums;
  for (const VocabularyShape& part : kParts) {
    host_.cross_entropy_forward(part, x_, {view(weight_).data + part.first_row * kWidth * 2, DataType::bf16},
                                targets_, running, host_work_.arena());
  }
  float loss = 0;
  host_.cross_entropy_loss(running, log_sums, std::span<float, 1>(&loss, 1));
  float first_loss = 0;
  in_every_way([&](const CudaOps& ops) {
    const OnDevice<float> x(x_);
    const OnDevice<Bf16> weight(weight_);
    const OnDevice<int32_t> targets(targets_);
    OnDevice<RunningLoss> running_d(kTokens);
    OnDevice<float> log_sums_d(kTokens), loss_d(1);
    for (const VocabularyShape& part : kParts) {
      ops.cross_entropy_forward(part, x, {weight.view().data + part.first_row * kWidth * 2, DataType::bf16},
                                targets, running_d, arena_);
    }
    ops.cross_entropy_loss(running_d, log_sums_d, std::span<float, 1>(loss_d.data(), 1));
    expect_close(log_sums_d.read(), log_sums, 1e-6, "log sums");
    EXPECT_NEAR(loss_d.read()[0], loss, 1e-6 * loss);
    if (first_log_sums.empty()) {
      first_log_sums = log_sums_d.read();
      first_loss = loss_d.read()[0];
    }
    expect_bits(log_sums_d.read(), first_log_sums, "log sums in another way");
    EXPECT_EQ(loss_d.read()[0], first_loss);
  });
}

TEST_F(CudaLoss, HasTheHostsGradientsPartByPart) {
  const std::vector<float> log_sums = random_values(kTokens, 4);
  std::vector<float> dx(x_.size());
  std::vector<Bf16> dweight = weight_;
  const OnDevice<float> x(x_), log_sums_d(log_sums);
  const OnDevice<Bf16> weight(weight_);
  const OnDevice<int32_t> targets(targets_);
  OnDevice<float> dx_d(x_.size());
  OnDevice<Bf16> dweight_d(weight_);
  const CudaOps ops(products_, {.block_limit = 3});
  for (const VocabularyShape& part : kParts) {
    const uint64_t first = part.first_row * kWidth * 2;
    const auto gradient_of = [&](GradientTarget all) {
      all.view.data += first;
      return all;
    };
    host_.cross_entropy_backward(part, x_, {view(weight_).data + first, DataType::bf16}, targets_, log_sums,
                                 2.0f, dx, gradient_of(into(dweight, true)), host_work_.arena());
    ops.cross_entropy_backward(part, x, {weight.view().data + first, DataType::bf16}, targets, log_sums_d,
                               2.0f, dx_d, gradient_of(dweight_d.into(true)), arena_);
  }
  expect_product(dx_d.read(), dx, "dx");
  expect_product(dweight_d.read(), dweight, "dweight");
}

TEST_F(CudaLoss, RoundsRowsInMemoryThatADryRunTakesToo) {
  const VocabularyShape part{kTokens, kWidth, 0, kVocabulary};
  const std::vector<float> rounded_x = as_floats(rounded_to<Bf16>(x_));
  const std::vector<float> log_sums(kTokens, 20.0f);  // larger than any logit
  std::vector<float> logits(kTokens * kVocabulary), dx(x_.size());
  std::vector<Bf16> dweight = weight_;
  host_.logits(part, rounded_x, view(weight_), kVocabulary, logits, host_work_.arena());
  host_.cross_entropy_backward(part, rounded_x, view(weight_), targets_, log_sums, 2.0f, dx, into(dweight),
                               host_work_.arena());
  const OnDevice<float> x(x_), log_sums_d(log_sums);
  const OnDevice<Bf16> weight(weight_);
  const OnDevice<int32_t> targets(targets_);
  OnDevice<float> logits_d(logits.size()), dx_d(dx.size());
  OnDevice<Bf16> dweight_d(dweight.size());
  StackArena arena(device_bytes_), dry = StackArena::dry_run();
  const CudaOps ops(products_, {}, {.rounds_rows = true});
  const CudaOps dry_ops(products_, {}, {.dry_run = true, .rounds_rows = true});
  const auto backward = [&](const CudaOps& on, StackArena& in) {
    on.cross_entropy_backward(part, x, weight.view(), targets, log_sums_d, 2.0f, dx_d, dweight_d.into(), in);
  };
  ops.logits(part, x, weight.view(), kVocabulary, logits_d, arena);
  EXPECT_EQ(arena.peak_bytes(), round_up(x_.size() * 2, StackArena::kAlignment));
  backward(ops, arena);
  backward(dry_ops, dry);
  EXPECT_EQ(arena.peak_bytes(), dry.peak_bytes());
  expect_product(logits_d.read(), logits, "logits");
  expect_close(dx_d.read(), dx, 0x1p-8, "dx");
  expect_close(as_floats(dweight_d.read()), as_floats(dweight), 0x1p-7, "dweight");
}

TEST_F(CudaLoss, WritesLogitsIntoTheirColumns) {
  std::vector<float> logits(kTokens * kVocabulary);
  OnDevice<float> logits_d(logits.size());
  const OnDevice<float> x(x_);
  const OnDevice<Bf16> weight(weight_);
  const CudaOps ops(products_, {});
  for (const VocabularyShape& part : kParts) {
    const uint64_t first = part.first_row * kWidth * 2;
    host_.logits(part, x_, {view(weight_).data + first, DataType::bf16}, kVocabulary, logits,
                 host_work_.arena());
    ops.logits(part, x, {weight.view().data + first, DataType::bf16}, kVocabulary, logits_d, arena_);
  }
  expect_product(logits_d.read(), logits, "logits");
}

}  // namespace
}  // namespace terrace::testing::vocabulary_test
