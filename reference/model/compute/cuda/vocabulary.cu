// What touches the vocabulary: the embeddings and the loss. Logits exist in tiles of columns; a token's
// gradient is the sum over its places in ascending order.
#include <limits>

#include <terrace/base/assert.h>

#include "internal/elements.cuh"

namespace terrace {
namespace compute {

constexpr uint64_t kLossColumns = VocabularyShape::kLossColumns;

// ---- Embeddings

struct EmbedTokens {
  EmbeddingShape shape;
  const int32_t* tokens;
  ParameterView table;
  float* y;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const uint64_t token = static_cast<uint64_t>(tokens[i / shape.width]);
    if (token < shape.first_row || token >= shape.first_row + shape.rows) return;
    const uint64_t element = (token - shape.first_row) * shape.width + i % shape.width;
    store(y + i, load_elements<kCount>(table.data, table.type, element));
  }
};

// A place's rank among all places, by token and then by place. Every thread compares its token with all.
__global__ void place_tokens(const int32_t* tokens, uint64_t count, uint32_t* places) {
  TERRACE_SHARED(int32_t, tile, kThreads);
  for (uint64_t first = uint64_t{blockIdx.x} * kThreads; first < count;
       first += uint64_t{gridDim.x} * kThreads) {
    const uint64_t place = first + threadIdx.x;
    const int32_t mine = place < count ? tokens[place] : 0;
    uint64_t rank = 0;
    for (uint64_t begin = 0; begin < count; begin += kThreads) {
      const uint64_t here = count - begin < kThreads ? count - begin : kThreads;
      __syncthreads();
      if (threadIdx.x < here) tile[threadIdx.x] = tokens[begin + threadIdx.x];
      __syncthreads();
      for (uint64_t other = 0; other < here; ++other) {
        rank += tile[other] < mine || (tile[other] == mine && begin + other < place) ? 1 : 0;
      }
    }
    if (place < count) places[rank] = static_cast<uint32_t>(place);
  }
}

// The places of all ids up to `id` end where the first greater id begins.
struct EndTokens {
  const int32_t* tokens;
  uint64_t count;
  const uint32_t* places;
  uint32_t* ends;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    for (uint64_t id = i; id < i + kCount; ++id) {
      uint64_t low = 0, high = count;
      while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (static_cast<uint64_t>(tokens[places[middle]]) <= id) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      ends[id] = static_cast<uint32_t>(low);
    }
  }
};

struct EmbedBackward {
  EmbeddingShape shape;
  const uint32_t *ends, *places;
  const float* dy;
  GradientTarget gradient;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const uint64_t id = shape.first_row + i / shape.width, column = i % shape.width;
    const uint32_t first = id == 0 ? 0 : ends[id - 1], end = ends[id];
    if (first == end && gradient.view.accumulate) return;
    Floats<kCount> sums{};
    for (uint32_t k = first; k < end; ++k) {
      const Floats<kCount> row = load<kCount>(dy + places[k] * shape.width + column);
      for (int c = 0; c < kCount; ++c) sums.at[c] += row.at[c];
    }
    land_elements(gradient, i, sums);
  }
};

struct AddPositions {
  PositionShape shape;
  ParameterView table;
  float* y;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const Floats<kCount> row =
        load_elements<kCount>(table.data, table.type, i % (shape.sequence * shape.width));
    const Floats<kCount> before = load<kCount>(y + i);
    store(y + i, each<kCount>([&](int k) { return before.at[k] + row.at[k]; }));
  }
};

struct PositionBackward {
  PositionShape shape;
  const float* dy;
  GradientTarget gradient;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const uint64_t samples = i / shape.width < shape.sequence ? shape.batch : 0;
    if (samples == 0 && gradient.view.accumulate) return;
    Floats<kCount> sums{};
    for (uint64_t sample = 0; sample < samples; ++sample) {
      const Floats<kCount> row = load<kCount>(dy + sample * shape.sequence * shape.width + i);
      for (int c = 0; c < kCount; ++c) sums.at[c] += row.at[c];
    }
    land_elements(gradient, i, sums);
  }
};

// ---- Loss

__device__ inline float largest_of_lanes(float value) {
  for (unsigned width = kRowLanes / 2; width != 0; width /= 2) {
    const float other = __shfl_xor_sync(kWholeWarp, value, width);
    value = other > value ? other : value;
  }
  return value;
}

struct LogitTile {
  const float* logits;
  uint64_t rows, columns, first_id;
};

// Adds a tile's columns to each row's loss, kLossColumns at a time.
__global__ void add_to_losses(LogitTile tile, const int32_t* targets, bool is_first, RunningLoss* running) {
  for_rows(tile.rows, [&](uint64_t row, unsigned lane) {
    const bool is_there = row < tile.rows;
    const float* const logits = tile.logits + row * tile.columns;
    RunningLoss total{-std::numeric_limits<float>::infinity(), 0.0f, 0.0f};
    if (is_there && !is_first) total = running[row];
    for (uint64_t first = 0; first < tile.columns; first += kLossColumns) {
      const uint64_t left = tile.columns - first, summed = left < kLossColumns ? left : kLossColumns;
      float largest = total.largest;
      for (uint64_t j = lane; is_there && j < summed; j += kRowLanes) {
        largest = logits[first + j] > largest ? logits[first + j] : largest;
      }
      largest = largest_of_lanes(largest);
      const float sum = sum_over_row(is_there ? summed : 0, lane,
                                     [&](uint64_t j) { return exp_of(logits[first + j] - largest); });
      total.sum = total.sum * exp_of(total.largest - largest) + sum;
      total.largest = largest;
    }
    if (lane != 0 || !is_there) return;
    const uint64_t target = static_cast<uint64_t>(targets[row]);
    if (target >= tile.first_id && target < tile.first_id + tile.columns) {
      total.target_logit = logits[target - tile.first_id];
    }
    running[row] = total;
  });
}

// One block: the losses of its threads' rows, then a tree.
__global__ void mean_loss(const RunningLoss* running, uint64_t rows, float* log_sums, float* loss) {
  TERRACE_SHARED(double, sums, kThreads);
  if (blockIdx.x != 0) return;
  double sum = 0.0;
  for (uint64_t row = threadIdx.x; row < rows; row += kThreads) {
    log_sums[row] = running[row].largest + logf(running[row].sum);
    sum += static_cast<double>(log_sums[row] - running[row].target_logit);
  }
  sums[threadIdx.x] = sum;
  for (unsigned width = kThreads / 2; width != 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
  }
  if (threadIdx.x == 0) *loss = static_cast<float>(sums[0] / static_cast<double>(rows));
}

// Logits become their gradients.
struct LossBackward {
  uint64_t columns, first_id;
  const int32_t* targets;
  const float* log_sums;
  float scale;
  float* logits;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const uint64_t row = i / columns, id = first_id + i % columns;
    const Floats<kCount> values = load<kCount>(logits + i);
    store(logits + i, each<kCount>([&](int k) {
            float p = exp_of(values.at[k] - log_sums[row]);
            if (id + static_cast<uint64_t>(k) == static_cast<uint64_t>(targets[row])) p -= 1.0f;
            return p * scale;
          }));
  }
};

}  // namespace compute

void CudaOps::embedding_forward(const EmbeddingShape& shape, std::span<const int32_t> tokens,
                                ParameterView table, std::span<float> y) const {
  compute::require_embedding_rows(shape, tokens.size(), y.size());
  if (dry_run_) return;
  launch_elements(launch_, compute::EmbedTokens{shape, tokens.data(), table, y.data()}, y.size(),
                  shape.width % 4 == 0 && are_aligned_for_quads({{table.data, table.type}, {y.data()}}));
}

void CudaOps::order_tokens(std::span<const int32_t> tokens, const TokenOrder& order) const {
  compute::require_token_order(order, tokens.size());
  if (dry_run_) return;
  compute::launch(launch_, divide_up(tokens.size(), compute::kThreads), compute::kThreads,
                  compute::place_tokens, tokens.data(), tokens.size(), order.places.data());
  launch_elements(launch_,
                  compute::EndTokens{tokens.data(), tokens.size(), order.places.data(), order.ends.data()},
                  order.ends.size(), false);
}

void CudaOps::embedding_backward(const EmbeddingShape& shape, const TokenOrder& order,
                                 std::span<const float> dy, const GradientTarget& gradient,
                                 StackArena&) const {
  compute::require_embedding_order(shape, order, dy.size());
  if (dry_run_ || gradient.view.data == nullptr) return;
  launch_elements(
      launch_, compute::EmbedBackward{shape, order.ends.data(), order.places.data(), dy.data(), gradient},
      shape.rows * shape.width,
      shape.width % 4 == 0 && are_aligned_for_quads({{dy.data()}, {gradient.view.data, gradient.type}}));
}

void CudaOps::position_forward(const PositionShape& shape, ParameterView table, std::span<float> y,
                               StackArena&) const {
  compute::require_position_rows(shape, y.size());
  if (dry_run_) return;
  const ParameterView rows = compute::rows_from(table, shape.first, shape.width);
  launch_elements(launch_, compute::AddPositions{shape, rows, y.data()}, y.size(),
                  shape.width % 4 == 0 && are_aligned_for_quads({{rows.data, rows.type}, {y.data()}}));
}

void CudaOps::position_backward(const PositionShape& shape, std::span<const float> dy,
                                const GradientTarget& gradient, StackArena&) const {
  compute::require_position_rows(shape, dy.size());
  TERRACE_ASSERT(shape.first == 0, "the gradients of earlier tokens are of another pass");
  if (dry_run_ || gradient.view.data == nullptr) return;
  launch_elements(
      launch_, compute::PositionBackward{shape, dy.data(), gradient}, shape.context * shape.width,
      shape.width % 4 == 0 && are_aligned_for_quads({{dy.data()}, {gradient.view.data, gradient.type}}));
}

void CudaOps::cross_entropy_forward(const VocabularyShape& part, std::span<const float> x,
                                    ParameterView weight, std::span<const int32_t> targets,
                                    std::span<RunningLoss> running, StackArena& arena) const {
  compute::require_loss_rows(part, x.size(), targets.size());
  TERRACE_ASSERT(running.size() == part.tokens, "the loss's rows have another size");
  const StackArena::Frame frame(arena);
  const uint64_t widest = compute::logit_columns(part);
  const std::span<float> tile = arena.allocate<float>(part.tokens * widest);
  const Operand rows = rows_for(weight.type, x, part.width, arena);
  for (uint64_t first = 0; first < part.rows; first += widest) {
    const uint64_t columns = std::min(widest, part.rows - first), first_id = part.first_row + first;
    multiply({part.tokens, columns, part.width}, rows, compute::table_rows(weight, first, part.width, true),
             {.data = tile.data(), .stride = columns}, arena);
    if (dry_run_) return;  // no later tile needs more memory
    compute::launch(launch_, divide_up(part.tokens, compute::kRowsOfBlock), compute::kThreads,
                    compute::add_to_losses, {tile.data(), part.tokens, columns, first_id}, targets.data(),
                    first_id == 0, running.data());
  }
}

void CudaOps::cross_entropy_loss(std::span<const RunningLoss> running, std::span<float> log_sums,
                                 std::span<float, 1> loss) const {
  TERRACE_ASSERT(running.size() == log_sums.size(), "the loss's rows have another size");
  if (dry_run_) return;
  compute::launch(launch_, 1, compute::kThreads, compute::mean_loss, running.data(), running.size(),
                  log_sums.data(), loss.data());
}

void CudaOps::cross_entropy_backward(const VocabularyShape& part, std::span<const float> x,
                                     ParameterView weight, std::span<const int32_t> targets,
                                     std::span<const float> log_sums, float loss_scale, std::span<float> dx,
                                     const GradientTarget& weight_gradient, StackArena& arena) const {
  compute::require_loss_rows(part, x.size(), targets.size());
  TERRACE_ASSERT((dx.empty() || dx.size() == x.size()) && log_sums.size() == part.tokens,
                 "the loss's rows have another size");
  const StackArena::Frame frame(arena);
  const uint64_t widest = compute::logit_columns(part);
  const std::span<float> tile = arena.allocate<float>(part.tokens * widest);
  const Operand rows = rows_for(weight.type, x, part.width, arena);
  const float scale = loss_scale / static_cast<float>(part.tokens);
  for (uint64_t first = 0; first < part.rows; first += widest) {
    const uint64_t columns = std::min(widest, part.rows - first), first_id = part.first_row + first;
    multiply({part.tokens, columns, part.width}, rows, compute::table_rows(weight, first, part.width, true),
             {.data = tile.data(), .stride = columns}, arena);
    const compute::LossBackward backward{columns,         first_id, targets.data(),
                                         log_sums.data(), scale,    tile.data()};
    if (!dry_run_) launch_elements(launch_, backward, part.tokens * columns, columns % 4 == 0);
    const StackArena::Frame gradients_of_tile(arena);
    const Operand tile_rows = rows_for(weight.type, tile.first(part.tokens * columns), columns, arena);
    if (!dx.empty()) {
      multiply({part.tokens, part.width, columns}, tile_rows,
               compute::table_rows(weight, first, part.width, false),
               {.data = dx.data(), .stride = part.width, .accumulate = first_id != 0}, arena);
    }
    GradientTarget rows_of_tile = weight_gradient;
    if (rows_of_tile.view.data != nullptr)
      rows_of_tile.view.data += first * part.width * bytes_of(weight_gradient.type);
    multiply_into({columns, part.width, part.tokens}, compute::transposed(tile_rows), rows, rows_of_tile,
                  arena);
    if (dry_run_) return;  // no later tile needs more memory
  }
}

void CudaOps::logits(const VocabularyShape& part, std::span<const float> x, ParameterView weight,
                     uint64_t vocabulary, std::span<float> logits, StackArena& arena) const {
  TERRACE_ASSERT(x.size() == part.tokens * part.width && logits.size() == part.tokens * vocabulary &&
                     part.first_row + part.rows <= vocabulary,
                 "the logits' rows have another size");
  const StackArena::Frame frame(arena);
  float* const first = dry_run_ ? nullptr : logits.data() + part.first_row;
  multiply({part.tokens, part.rows, part.width}, rows_for(weight.type, x, part.width, arena),
           compute::table_rows(weight, 0, part.width, true), {.data = first, .stride = vocabulary}, arena);
}

}  // namespace terrace
