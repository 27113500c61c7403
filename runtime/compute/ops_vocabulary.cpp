// What touches the vocabulary: the embeddings and the loss. Logits and the gradient of the token table exist
// in tiles.
#include <terrace/runtime/compute/internal/kernel_table.h>
#include <terrace/runtime/compute/ops.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace terrace {
namespace {

// Rows of the token table whose gradient one task makes.
constexpr uint64_t kTableRows = 64;
// Logits that exist at once, for all tokens: 16 MiB of fp32, and never fewer than 128 columns.
constexpr uint64_t kLogits = 4 * 1024 * 1024;
constexpr uint64_t kFewestColumns = 128;

uint64_t logit_columns(const VocabularyShape& shape) {
  const uint64_t fitting = kLogits / std::max<uint64_t>(shape.tokens, 1) / kFewestColumns * kFewestColumns;
  return std::min(std::max(fitting, kFewestColumns), shape.vocabulary);
}

// The rows [first, ...) of a [vocabulary, width] table, as the operand of a product.
Operand table_rows(ParameterView weight, uint64_t first, uint64_t width, bool transposed) {
  return {.data = weight.data + first * width * bytes_of(weight.type),
          .stride = width,
          .type = weight.type,
          .transposed = transposed};
}

// The softmax's denominator of a row of logits that come tile by tile: sum * exp(largest).
struct RunningSum {
  float largest;
  float sum;
  float target_logit;
};

}  // namespace

void HostOps::embedding_forward(const EmbeddingShape& shape, std::span<const int32_t> tokens,
                                ParameterView token_table, ParameterView position_table, std::span<float> y,
                                StackArena& arena) const {
  TERRACE_ASSERT(tokens.size() == shape.tokens() && y.size() == shape.tokens() * shape.width,
                 "an embedding's rows have another size");
  TERRACE_ASSERT(shape.sequence <= shape.context, "more tokens than positions");
  const uint64_t width = shape.width;
  const StackArena::Frame frame(arena);
  const std::span<const float> positions = as_floats(position_table, shape.sequence * width, arena);
  if (dry_run_) return;
  for_row_blocks(tokens.size(), width, [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row) {
      const uint64_t element = static_cast<uint64_t>(tokens[row]) * width;
      const float* const position = positions.data() + row % shape.sequence * width;
      float* const to = y.data() + row * width;
      if (token_table.type == DataType::fp32) {
        kernels_.add(reinterpret_cast<const float*>(token_table.data) + element, position, to, width);
      } else {
        kernels_.widen(token_table.data + element * bytes_of(token_table.type),
                       compute::format_of(token_table.type), to, width);
        kernels_.add(to, position, to, width);
      }
    }
  });
}

void HostOps::embedding_backward(const EmbeddingShape& shape, std::span<const int32_t> tokens,
                                 std::span<const float> dy, const GradientTarget& token_gradient,
                                 const GradientTarget& position_gradient, StackArena& arena) const {
  TERRACE_ASSERT(tokens.size() == shape.tokens() && dy.size() == shape.tokens() * shape.width,
                 "an embedding's rows have another size");
  const uint64_t width = shape.width;
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, width);
  // The tokens' rows grouped by id, ascending within an id: ends[id] is where the rows of `id` end.
  const std::span<uint32_t> ends = arena.allocate<uint32_t>(shape.vocabulary + 1);
  const std::span<uint32_t> rows = arena.allocate<uint32_t>(tokens.size());
  if (dry_run_) return;
  std::fill(ends.begin(), ends.end(), 0u);
  for (const int32_t token : tokens) ++ends[static_cast<uint64_t>(token) + 1];
  for (uint64_t id = 1; id <= shape.vocabulary; ++id) ends[id] += ends[id - 1];
  for (uint64_t row = 0; row < tokens.size(); ++row) {
    rows[ends[static_cast<uint64_t>(tokens[row])]++] = static_cast<uint32_t>(row);
  }

  const auto sum_rows = [&](float* sums, const auto& row_at, uint64_t count) {
    std::fill_n(sums, width, 0.0f);
    for (uint64_t k = 0; k < count; ++k) kernels_.add(sums, dy.data() + row_at(k) * width, sums, width);
  };
  workers_.parallel_for(divide_up(shape.vocabulary, kTableRows), [&](size_t block) {
    float* const sums = scratch.mine();
    const uint64_t end = std::min((block + 1) * kTableRows, shape.vocabulary);
    for (uint64_t id = block * kTableRows; id < end; ++id) {
      const uint32_t first = id == 0 ? 0 : ends[id - 1];
      if (first == ends[id] && token_gradient.view.accumulate) continue;
      sum_rows(
          sums, [&](uint64_t k) { return rows[first + k]; }, ends[id] - first);
      land(sums, token_gradient, id * width, width);
    }
  });
  workers_.parallel_for(divide_up(shape.context, kTableRows), [&](size_t block) {
    float* const sums = scratch.mine();
    const uint64_t end = std::min((block + 1) * kTableRows, shape.context);
    for (uint64_t place = block * kTableRows; place < end; ++place) {
      const uint64_t samples = place < shape.sequence ? shape.batch : 0;
      if (samples == 0 && position_gradient.view.accumulate) continue;
      sum_rows(
          sums, [&](uint64_t sample) { return sample * shape.sequence + place; }, samples);
      land(sums, position_gradient, place * width, width);
    }
  });
}

float HostOps::cross_entropy_forward(const VocabularyShape& shape, std::span<const float> x,
                                     ParameterView weight, std::span<const int32_t> targets,
                                     std::span<float> log_sums, StackArena& arena) const {
  TERRACE_ASSERT(x.size() == shape.tokens * shape.width && targets.size() == shape.tokens &&
                     log_sums.size() == shape.tokens,
                 "the loss's rows have another size");
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats());
  const uint64_t widest = logit_columns(shape);
  const std::span<float> logits = arena.allocate<float>(shape.tokens * widest);
  const std::span<RunningSum> running = arena.allocate<RunningSum>(shape.tokens);
  if (dry_run_) return 0.0f;
  std::fill(running.begin(), running.end(), RunningSum{-std::numeric_limits<float>::infinity(), 0.0f, 0.0f});
  for (uint64_t first = 0; first < shape.vocabulary; first += widest) {
    const uint64_t columns = std::min(widest, shape.vocabulary - first);
    products_.multiply({shape.tokens, columns, shape.width}, {.data = x.data(), .stride = shape.width},
                       table_rows(weight, first, shape.width, true),
                       {.data = logits.data(), .stride = columns}, scratch);
    for_row_blocks(shape.tokens, columns, [&](uint64_t first_row, uint64_t count) {
      for (uint64_t row = first_row; row < first_row + count; ++row) {
        const float* const logit = logits.data() + row * columns;
        RunningSum& total = running[row];
        const float largest = std::max(total.largest, kernels_.maximum(logit, columns));
        total.sum =
            total.sum * std::exp(total.largest - largest) + kernels_.sum_of_exp(logit, largest, columns);
        total.largest = largest;
        const uint64_t target = static_cast<uint64_t>(targets[row]);
        if (target >= first && target < first + columns) total.target_logit = logit[target - first];
      }
    });
  }
  double loss = 0.0;
  for (uint64_t row = 0; row < shape.tokens; ++row) {
    log_sums[row] = running[row].largest + std::log(running[row].sum);
    loss += static_cast<double>(log_sums[row] - running[row].target_logit);
  }
  return static_cast<float>(loss / static_cast<double>(shape.tokens));
}

void HostOps::cross_entropy_backward(const VocabularyShape& shape, std::span<const float> x,
                                     ParameterView weight, std::span<const int32_t> targets,
                                     std::span<const float> log_sums, float loss_scale, std::span<float> dx,
                                     const GradientTarget& weight_gradient, StackArena& arena) const {
  TERRACE_ASSERT(x.size() == shape.tokens * shape.width && dx.size() == x.size() &&
                     targets.size() == shape.tokens && log_sums.size() == shape.tokens,
                 "the loss's rows have another size");
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats());
  const uint64_t widest = logit_columns(shape);
  const std::span<float> logits = arena.allocate<float>(shape.tokens * widest);
  if (dry_run_) return;
  const float scale = loss_scale / static_cast<float>(shape.tokens);
  for (uint64_t first = 0; first < shape.vocabulary; first += widest) {
    const uint64_t columns = std::min(widest, shape.vocabulary - first);
    const Operand rows{.data = x.data(), .stride = shape.width};
    products_.multiply({shape.tokens, columns, shape.width}, rows,
                       table_rows(weight, first, shape.width, true),
                       {.data = logits.data(), .stride = columns}, scratch);
    for_row_blocks(shape.tokens, columns, [&](uint64_t first_row, uint64_t count) {
      for (uint64_t row = first_row; row < first_row + count; ++row) {
        float* const logit = logits.data() + row * columns;
        kernels_.exp_row(logit, 1.0f, log_sums[row], columns);
        const uint64_t target = static_cast<uint64_t>(targets[row]);
        if (target >= first && target < first + columns) logit[target - first] -= 1.0f;
        kernels_.scale(logit, scale, columns);
      }
    });
    products_.multiply({shape.tokens, shape.width, columns}, {.data = logits.data(), .stride = columns},
                       table_rows(weight, first, shape.width, false),
                       {.data = dx.data(), .stride = shape.width, .accumulate = first != 0}, scratch);
    GradientTarget tile = weight_gradient;
    tile.view.data += first * shape.width * bytes_of(tile.type);
    products_.multiply_into({columns, shape.width, shape.tokens},
                            {.data = logits.data(), .stride = columns, .transposed = true}, rows, tile,
                            scratch);
  }
}

}  // namespace terrace
