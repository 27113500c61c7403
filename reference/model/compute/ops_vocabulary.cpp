// What touches the vocabulary: the embeddings and the loss. Logits and the gradient of the token table exist
// in tiles.
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/compute/internal/kernel_table.h>
#include <terrace/reference/model/compute/internal/shapes.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace terrace {
namespace {

// Rows of the token table whose gradient one task makes.
constexpr uint64_t kTableRows = 64;
constexpr uint64_t kLossColumns = VocabularyShape::kLossColumns;

}  // namespace

void HostOps::embedding_forward(const EmbeddingShape& shape, std::span<const int32_t> tokens,
                                ParameterView table, std::span<float> y) const {
  compute::require_embedding_rows(shape, tokens.size(), y.size());
  if (dry_run_) return;
  const uint64_t width = shape.width;
  for_row_blocks(tokens.size(), width, [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row) {
      const uint64_t token = static_cast<uint64_t>(tokens[row]);
      if (token < shape.first_row || token >= shape.first_row + shape.rows) continue;
      const uint64_t element = (token - shape.first_row) * width;
      float* const to = y.data() + row * width;
      kernels_.widen(table.data + element * bytes_of(table.type), compute::format_of(table.type), to, width);
    }
  });
}

void HostOps::order_tokens(std::span<const int32_t> tokens, const TokenOrder& order) const {
  compute::require_token_order(order, tokens.size());
  if (dry_run_) return;
  std::fill(order.ends.begin(), order.ends.end(), 0u);
  for (const int32_t token : tokens) ++order.ends[static_cast<uint64_t>(token) + 1];
  for (uint64_t id = 1; id < order.ends.size(); ++id) order.ends[id] += order.ends[id - 1];
  for (uint64_t place = 0; place < tokens.size(); ++place) {
    order.places[order.ends[static_cast<uint64_t>(tokens[place])]++] = static_cast<uint32_t>(place);
  }
}

void HostOps::embedding_backward(const EmbeddingShape& shape, const TokenOrder& order,
                                 std::span<const float> dy, const GradientTarget& gradient,
                                 StackArena& arena) const {
  compute::require_embedding_order(shape, order, dy.size());
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, shape.width);
  if (dry_run_ || gradient.view.data == nullptr) return;
  const uint64_t width = shape.width;
  workers_.parallel_for(divide_up(shape.rows, kTableRows), [&](size_t block) {
    float* const sums = scratch.mine();
    const uint64_t end = std::min((block + 1) * kTableRows, shape.rows);
    for (uint64_t row = block * kTableRows; row < end; ++row) {
      const uint64_t id = shape.first_row + row;
      const uint32_t first = id == 0 ? 0 : order.ends[id - 1];
      if (first == order.ends[id] && gradient.view.accumulate) continue;
      std::fill_n(sums, width, 0.0f);
      for (uint32_t k = first; k < order.ends[id]; ++k) {
        kernels_.add(sums, dy.data() + order.places[k] * width, sums, width);
      }
      land(sums, gradient, row * width, width);
    }
  });
}

void HostOps::position_forward(const PositionShape& shape, ParameterView table, std::span<float> y,
                               StackArena& arena) const {
  compute::require_position_rows(shape, y.size());
  const uint64_t width = shape.width;
  const StackArena::Frame frame(arena);
  const std::span<const float> positions =
      as_floats(compute::rows_from(table, shape.first, width), shape.sequence * width, arena);
  if (dry_run_) return;
  for_row_blocks(shape.batch * shape.sequence, width, [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row) {
      float* const to = y.data() + row * width;
      kernels_.add(to, positions.data() + row % shape.sequence * width, to, width);
    }
  });
}

void HostOps::position_backward(const PositionShape& shape, std::span<const float> dy,
                                const GradientTarget& gradient, StackArena& arena) const {
  compute::require_position_rows(shape, dy.size());
  TERRACE_ASSERT(shape.first == 0, "the gradients of earlier tokens are of another pass");
  const uint64_t width = shape.width;
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, width);
  if (dry_run_ || gradient.view.data == nullptr) return;
  workers_.parallel_for(divide_up(shape.context, kTableRows), [&](size_t block) {
    float* const sums = scratch.mine();
    const uint64_t end = std::min((block + 1) * kTableRows, shape.context);
    for (uint64_t place = block * kTableRows; place < end; ++place) {
      const uint64_t samples = place < shape.sequence ? shape.batch : 0;
      if (samples == 0 && gradient.view.accumulate) continue;
      std::fill_n(sums, width, 0.0f);
      for (uint64_t sample = 0; sample < samples; ++sample) {
        kernels_.add(sums, dy.data() + (sample * shape.sequence + place) * width, sums, width);
      }
      land(sums, gradient, place * width, width);
    }
  });
}

void HostOps::cross_entropy_forward(const VocabularyShape& part, std::span<const float> x,
                                    ParameterView weight, std::span<const int32_t> targets,
                                    std::span<RunningLoss> running, StackArena& arena) const {
  compute::require_loss_rows(part, x.size(), targets.size());
  TERRACE_ASSERT(running.size() == part.tokens, "the loss's rows have another size");
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats());
  const uint64_t widest = compute::logit_columns(part);
  const std::span<float> tile = arena.allocate<float>(part.tokens * widest);
  if (dry_run_) return;
  if (part.first_row == 0) {
    std::fill(running.begin(), running.end(),
              RunningLoss{-std::numeric_limits<float>::infinity(), 0.0f, 0.0f});
  }
  for (uint64_t first = 0; first < part.rows; first += widest) {
    const uint64_t columns = std::min(widest, part.rows - first);
    products_.multiply({part.tokens, columns, part.width}, {.data = x.data(), .stride = part.width},
                       compute::table_rows(weight, first, part.width, true),
                       {.data = tile.data(), .stride = columns}, scratch);
    const uint64_t first_id = part.first_row + first;
    for_row_blocks(part.tokens, columns, [&](uint64_t first_row, uint64_t count) {
      for (uint64_t row = first_row; row < first_row + count; ++row) {
        const float* const logit = tile.data() + row * columns;
        RunningLoss& total = running[row];
        for (uint64_t c = 0; c < columns; c += kLossColumns) {
          const uint64_t summed = std::min(kLossColumns, columns - c);
          const float largest = std::max(total.largest, kernels_.maximum(logit + c, summed));
          total.sum =
              total.sum * std::exp(total.largest - largest) + kernels_.sum_of_exp(logit + c, largest, summed);
          total.largest = largest;
        }
        const uint64_t target = static_cast<uint64_t>(targets[row]);
        if (target >= first_id && target < first_id + columns) total.target_logit = logit[target - first_id];
      }
    });
  }
}

void HostOps::cross_entropy_loss(std::span<const RunningLoss> running, std::span<float> log_sums,
                                 std::span<float, 1> result) const {
  TERRACE_ASSERT(running.size() == log_sums.size(), "the loss's rows have another size");
  if (dry_run_) return;
  double loss = 0.0;
  for (uint64_t row = 0; row < running.size(); ++row) {
    log_sums[row] = running[row].largest + std::log(running[row].sum);
    loss += static_cast<double>(log_sums[row] - running[row].target_logit);
  }
  result[0] = static_cast<float>(loss / static_cast<double>(running.size()));
}

void HostOps::cross_entropy_backward(const VocabularyShape& part, std::span<const float> x,
                                     ParameterView weight, std::span<const int32_t> targets,
                                     std::span<const float> log_sums, float loss_scale, std::span<float> dx,
                                     const GradientTarget& weight_gradient, StackArena& arena) const {
  compute::require_loss_rows(part, x.size(), targets.size());
  TERRACE_ASSERT((dx.empty() || dx.size() == x.size()) && log_sums.size() == part.tokens,
                 "the loss's rows have another size");
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats());
  const uint64_t widest = compute::logit_columns(part);
  const std::span<float> tile = arena.allocate<float>(part.tokens * widest);
  if (dry_run_) return;
  const float scale = loss_scale / static_cast<float>(part.tokens);
  for (uint64_t first = 0; first < part.rows; first += widest) {
    const uint64_t columns = std::min(widest, part.rows - first), first_id = part.first_row + first;
    const Operand rows{.data = x.data(), .stride = part.width};
    products_.multiply({part.tokens, columns, part.width}, rows,
                       compute::table_rows(weight, first, part.width, true),
                       {.data = tile.data(), .stride = columns}, scratch);
    for_row_blocks(part.tokens, columns, [&](uint64_t first_row, uint64_t count) {
      for (uint64_t row = first_row; row < first_row + count; ++row) {
        float* const logit = tile.data() + row * columns;
        kernels_.exp_row(logit, 1.0f, log_sums[row], columns);
        const uint64_t target = static_cast<uint64_t>(targets[row]);
        if (target >= first_id && target < first_id + columns) logit[target - first_id] -= 1.0f;
        kernels_.scale(logit, scale, columns);
      }
    });
    if (!dx.empty()) {
      products_.multiply({part.tokens, part.width, columns}, {.data = tile.data(), .stride = columns},
                         compute::table_rows(weight, first, part.width, false),
                         {.data = dx.data(), .stride = part.width, .accumulate = first_id != 0}, scratch);
    }
    if (weight_gradient.view.data == nullptr) continue;
    GradientTarget rows_of_tile = weight_gradient;
    rows_of_tile.view.data += first * part.width * bytes_of(weight_gradient.type);
    gradient_products_.multiply({columns, part.width, part.tokens},
                                {.data = tile.data(), .stride = columns, .transposed = true}, rows,
                                rows_of_tile, scratch);
  }
}

void HostOps::logits(const VocabularyShape& part, std::span<const float> x, ParameterView weight,
                     uint64_t vocabulary, std::span<float> logits, StackArena& arena) const {
  TERRACE_ASSERT(x.size() == part.tokens * part.width && logits.size() == part.tokens * vocabulary &&
                     part.first_row + part.rows <= vocabulary,
                 "the logits' rows have another size");
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats());
  if (dry_run_) return;
  products_.multiply({part.tokens, part.rows, part.width}, {.data = x.data(), .stride = part.width},
                     compute::table_rows(weight, 0, part.width, true),
                     {.data = logits.data() + part.first_row, .stride = vocabulary}, scratch);
}

}  // namespace terrace
