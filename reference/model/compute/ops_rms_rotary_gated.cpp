// What the Llama family adds: root-mean-square norms, rotary positions and gated units.
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/compute/internal/kernel_table.h>
#include <terrace/reference/model/compute/internal/shapes.h>

#include <algorithm>

namespace terrace {

void HostOps::rms_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                               std::span<float> y, const NormStatistics& statistics,
                               StackArena& arena) const {
  compute::require_norm_rows(shape, {x.size(), y.size()});
  const StackArena::Frame frame(arena);
  const std::span<const float> gammas = as_floats(gamma, shape.width, arena);
  if (dry_run_) return;
  for_row_blocks(shape.rows, shape.width, [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row) {
      kernels_.rms_row(x.data() + row * shape.width, gammas.data(), y.data() + row * shape.width, shape.width,
                       shape.epsilon, &statistics.inverse_deviations[row]);
    }
  });
}

void HostOps::rms_norm_backward(const NormShape& shape, std::span<const float> x,
                                const NormStatistics& statistics, ParameterView gamma,
                                std::span<const float> dy, std::span<float> dx,
                                const GradientTarget& gamma_gradient, StackArena& arena) const {
  compute::require_norm_rows(shape, {x.size(), dy.size(), dx.size()});
  const StackArena::Frame frame(arena);
  const std::span<const float> gammas = as_floats(gamma, shape.width, arena);
  if (dry_run_) return;
  for_row_blocks(shape.rows, shape.width, [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row) {
      kernels_.rms_row_backward(dy.data() + row * shape.width, x.data() + row * shape.width, gammas.data(),
                                statistics.inverse_deviations[row], dx.data() + row * shape.width,
                                shape.width);
    }
  });
  if (gamma_gradient.view.data == nullptr) return;
  workers_.parallel_for(divide_up(shape.width, compute::kColumnSlab), [&](size_t index) {
    const uint64_t first = index * compute::kColumnSlab;
    const uint64_t columns = std::min(compute::kColumnSlab, shape.width - first);
    float sums[compute::kColumnSlab];
    kernels_.rms_column_sums(dy.data() + first, x.data() + first, shape.width,
                             statistics.inverse_deviations.data(), shape.rows, columns, sums);
    land(sums, gamma_gradient, first, columns);
  });
}

void HostOps::rotate(const RotaryShape& shape, const RotaryTable& table, bool inverse,
                     std::span<float> x) const {
  const uint64_t half = shape.head_size / 2, width = shape.heads * shape.head_size;
  compute::require_rotary_rows(shape, table, x.size());
  if (dry_run_) return;
  for_row_blocks(shape.tokens, width, [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row) {
      const uint64_t angles = row % shape.sequence * half;
      for (uint64_t head = 0; head < shape.heads; ++head) {
        kernels_.rotate(x.data() + row * width + head * shape.head_size, table.cosines.data() + angles,
                        table.sines.data() + angles, inverse ? -1.0f : 1.0f, half);
      }
    }
  });
}

void HostOps::swiglu_forward(std::span<const float> gate, std::span<const float> up,
                             std::span<float> y) const {
  compute::require_gated_units({gate.size(), up.size(), y.size()});
  if (dry_run_) return;
  for_row_blocks(y.size(), 1, [&](uint64_t first, uint64_t count) {
    kernels_.swiglu(gate.data() + first, up.data() + first, y.data() + first, count);
  });
}

void HostOps::swiglu_backward(std::span<const float> gate, std::span<const float> up, std::span<float> dy,
                              std::span<float> dup) const {
  compute::require_gated_units({gate.size(), up.size(), dy.size(), dup.size()});
  if (dry_run_) return;
  for_row_blocks(dy.size(), 1, [&](uint64_t first, uint64_t count) {
    kernels_.swiglu_backward(gate.data() + first, up.data() + first, dy.data() + first, dup.data() + first,
                             count);
  });
}

}  // namespace terrace
