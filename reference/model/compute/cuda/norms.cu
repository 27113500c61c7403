// Norms and sums over rows. A row has the host's 16 lanes and its tree; sums over rows go by blocks of 64
// rows, a partial sum each, added in order.
#include "internal/elements.cuh"

namespace terrace {
namespace compute {

constexpr uint64_t kSumRows = 64;

__global__ void layer_norm(NormShape shape, const float* x, ParameterView gamma, ParameterView beta, float* y,
                           float* means, float* inverse_deviations) {
  for_rows(shape.rows, [&](uint64_t row, unsigned lane) {
    const uint64_t width = row < shape.rows ? shape.width : 0;
    const float extent = static_cast<float>(shape.width);
    const float* const from = x + row * shape.width;
    const float mean = sum_over_row(width, lane, [&](uint64_t j) { return from[j]; }) / extent;
    const float squares = sum_over_row(width, lane, [&](uint64_t j) {
      const float difference = from[j] - mean;
      return difference * difference;
    });
    const float inverse_deviation = 1.0f / sqrtf(squares / extent + shape.epsilon);
    for (uint64_t j = lane; j < width; j += kRowLanes) {
      y[row * shape.width + j] =
          (from[j] - mean) * inverse_deviation * load_element(gamma.data, gamma.type, j) +
          load_element(beta.data, beta.type, j);
    }
    if (lane != 0 || width == 0) return;
    means[row] = mean;
    inverse_deviations[row] = inverse_deviation;
  });
}

__global__ void layer_norm_backward(NormShape shape, const float* x, const float* means,
                                    const float* inverse_deviations, ParameterView gamma, const float* dy,
                                    float* dx) {
  for_rows(shape.rows, [&](uint64_t row, unsigned lane) {
    const bool is_there = row < shape.rows;
    const uint64_t width = is_there ? shape.width : 0, first = row * shape.width;
    const float extent = static_cast<float>(shape.width);
    const float mean = is_there ? means[row] : 0.0f;
    const float inverse_deviation = is_there ? inverse_deviations[row] : 0.0f;
    const auto scaled = [&](uint64_t j) { return dy[first + j] * load_element(gamma.data, gamma.type, j); };
    const auto normalised = [&](uint64_t j) { return (x[first + j] - mean) * inverse_deviation; };
    const float sum = sum_over_row(width, lane, scaled);
    const float moment = sum_over_row(width, lane, [&](uint64_t j) { return scaled(j) * normalised(j); });
    const float offset = sum / extent, slope = moment / extent;
    for (uint64_t j = lane; j < width; j += kRowLanes) {
      dx[first + j] += (scaled(j) - offset - normalised(j) * slope) * inverse_deviation;
    }
  });
}

__global__ void rms_norm(NormShape shape, const float* x, ParameterView gamma, float* y,
                         float* inverse_roots) {
  for_rows(shape.rows, [&](uint64_t row, unsigned lane) {
    const uint64_t width = row < shape.rows ? shape.width : 0;
    const float* const from = x + row * shape.width;
    const float squares = sum_over_row(width, lane, [&](uint64_t j) { return from[j] * from[j]; });
    const float inverse_root = 1.0f / sqrtf(squares / static_cast<float>(shape.width) + shape.epsilon);
    for (uint64_t j = lane; j < width; j += kRowLanes) {
      y[row * shape.width + j] = from[j] * inverse_root * load_element(gamma.data, gamma.type, j);
    }
    if (lane == 0 && width != 0) inverse_roots[row] = inverse_root;
  });
}

__global__ void rms_norm_backward(NormShape shape, const float* x, const float* inverse_roots,
                                  ParameterView gamma, const float* dy, float* dx) {
  for_rows(shape.rows, [&](uint64_t row, unsigned lane) {
    const bool is_there = row < shape.rows;
    const uint64_t width = is_there ? shape.width : 0, first = row * shape.width;
    const float inverse_root = is_there ? inverse_roots[row] : 0.0f;
    const auto scaled = [&](uint64_t j) { return dy[first + j] * load_element(gamma.data, gamma.type, j); };
    const float moment =
        sum_over_row(width, lane, [&](uint64_t j) { return scaled(j) * (x[first + j] * inverse_root); });
    const float slope = moment / static_cast<float>(shape.width);
    for (uint64_t j = lane; j < width; j += kRowLanes) {
      dx[first + j] += (scaled(j) - x[first + j] * inverse_root * slope) * inverse_root;
    }
  });
}

// ---- Sums over rows: what is summed, by row and column

struct PlainTerm {
  const float* x;
  uint64_t width;
  __device__ float operator()(uint64_t row, uint64_t column) const { return x[row * width + column]; }
};
struct LayerNormTerm {
  const float *dy, *x, *means, *inverse_deviations;
  uint64_t width;
  __device__ float operator()(uint64_t row, uint64_t column) const {
    const uint64_t at = row * width + column;
    return dy[at] * ((x[at] - means[row]) * inverse_deviations[row]);
  }
};
struct RmsNormTerm {
  const float *dy, *x, *inverse_roots;
  uint64_t width;
  __device__ float operator()(uint64_t row, uint64_t column) const {
    const uint64_t at = row * width + column;
    return dy[at] * (x[at] * inverse_roots[row]);
  }
};

// partials[block of rows, column].
template <typename Term>
struct PartialSums {
  Term term;
  RowShape shape;
  float* partials;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    static_assert(kCount == 1 || kCount == 4);
    for (uint64_t item = i; item < i + kCount; ++item) {
      const uint64_t first = item / shape.width * kSumRows, column = item % shape.width;
      const uint64_t end = first + kSumRows < shape.rows ? first + kSumRows : shape.rows;
      float sum = 0.0f;
      for (uint64_t row = first; row < end; ++row) sum += term(row, column);
      partials[item] = sum;
    }
  }
};

struct LandPartialSums {
  const float* partials;
  uint64_t blocks, width;
  GradientTarget target;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    Floats<kCount> sum{};
    for (uint64_t block = 0; block < blocks; ++block) {
      for (int k = 0; k < kCount; ++k) sum.at[k] += partials[block * width + i + static_cast<uint64_t>(k)];
    }
    land_elements(target, i, sum);
  }
};

template <typename Term>
void land_sums(const CudaLaunch& where, const RowShape& shape, const Term& term, const GradientTarget& target,
               StackArena& arena, bool dry_run) {
  const StackArena::Frame frame(arena);
  const uint64_t blocks = divide_up(shape.rows, kSumRows);
  const std::span<float> partials = arena.allocate<float>(blocks * shape.width);
  if (dry_run || target.view.data == nullptr) return;
  launch_elements(where, PartialSums<Term>{term, shape, partials.data()}, partials.size(), false);
  launch_elements(where, LandPartialSums{partials.data(), blocks, shape.width, target}, shape.width, false);
}

}  // namespace compute

using compute::kRowsOfBlock;
using compute::kThreads;
using compute::land_sums;
using compute::launch;

void CudaOps::land_column_sums(const RowShape& shape, const float* dy, const GradientTarget& target,
                               StackArena& arena) const {
  land_sums(launch_, shape, compute::PlainTerm{dy, shape.width}, target, arena, dry_run_);
}

void CudaOps::layer_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                                 ParameterView beta, std::span<float> y, const NormStatistics& statistics,
                                 StackArena&) const {
  compute::require_norm_rows(shape, {x.size(), y.size()});
  if (dry_run_) return;
  launch(launch_, divide_up(shape.rows, kRowsOfBlock), kThreads, compute::layer_norm, shape, x.data(), gamma,
         beta, y.data(), statistics.means.data(), statistics.inverse_deviations.data());
}

void CudaOps::layer_norm_backward(const NormShape& shape, std::span<const float> x,
                                  const NormStatistics& statistics, ParameterView gamma,
                                  std::span<const float> dy, std::span<float> dx,
                                  const GradientTarget& gamma_gradient, const GradientTarget& beta_gradient,
                                  StackArena& arena) const {
  compute::require_norm_rows(shape, {x.size(), dy.size(), dx.size()});
  const RowShape rows{shape.rows, shape.width};
  const float* const means = statistics.means.data();
  const float* const inverse_deviations = statistics.inverse_deviations.data();
  if (!dry_run_) {
    launch(launch_, divide_up(shape.rows, kRowsOfBlock), kThreads, compute::layer_norm_backward, shape,
           x.data(), means, inverse_deviations, gamma, dy.data(), dx.data());
  }
  land_sums(launch_, rows,
            compute::LayerNormTerm{dy.data(), x.data(), means, inverse_deviations, shape.width},
            gamma_gradient, arena, dry_run_);
  land_sums(launch_, rows, compute::PlainTerm{dy.data(), shape.width}, beta_gradient, arena, dry_run_);
}

void CudaOps::rms_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                               std::span<float> y, const NormStatistics& statistics, StackArena&) const {
  compute::require_norm_rows(shape, {x.size(), y.size()});
  if (dry_run_) return;
  launch(launch_, divide_up(shape.rows, kRowsOfBlock), kThreads, compute::rms_norm, shape, x.data(), gamma,
         y.data(), statistics.inverse_deviations.data());
}

void CudaOps::rms_norm_backward(const NormShape& shape, std::span<const float> x,
                                const NormStatistics& statistics, ParameterView gamma,
                                std::span<const float> dy, std::span<float> dx,
                                const GradientTarget& gamma_gradient, StackArena& arena) const {
  compute::require_norm_rows(shape, {x.size(), dy.size(), dx.size()});
  const float* const inverse_roots = statistics.inverse_deviations.data();
  if (!dry_run_) {
    launch(launch_, divide_up(shape.rows, kRowsOfBlock), kThreads, compute::rms_norm_backward, shape,
           x.data(), inverse_roots, gamma, dy.data(), dx.data());
  }
  land_sums(launch_, {shape.rows, shape.width},
            compute::RmsNormTerm{dy.data(), x.data(), inverse_roots, shape.width}, gamma_gradient, arena,
            dry_run_);
}

}  // namespace terrace
