// Low-rank adapters beside a linear layer (Hu et al., "LoRA", arXiv:2106.09685): y += scale * (x A^T) B^T.
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/compute/internal/kernel_table.h>
#include <terrace/reference/model/compute/internal/shapes.h>

namespace terrace {

using compute::matrix;
using compute::rows_of;

void HostOps::adapter_down(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                           std::span<float> down, const ThreadScratch& scratch) const {
  products_.multiply({shape.rows, shape.rank, shape.inputs}, rows_of(x.data(), shape.inputs),
                     matrix(a, shape.inputs, true), {.data = down.data(), .stride = shape.rank}, scratch);
  scale(shape.scale, down);
}

void HostOps::scale(float factor, std::span<float> values) const {
  for_row_blocks(values.size(), 1, [&](uint64_t first, uint64_t count) {
    kernels_.scale(values.data() + first, factor, count);
  });
}

void HostOps::adapter_forward(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                              ParameterView b, std::span<float> y, StackArena& arena) const {
  compute::require_adapter_rows(shape, x.size(), y.size());
  const StackArena::Frame frame(arena);
  const std::span<float> down = arena.allocate<float>(shape.rows * shape.rank);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats());
  if (dry_run_) return;
  adapter_down(shape, x, a, down, scratch);
  products_.multiply({shape.rows, shape.outputs, shape.rank}, rows_of(down.data(), shape.rank),
                     matrix(b, shape.rank, true),
                     {.data = y.data(), .stride = shape.outputs, .accumulate = true}, scratch);
}

// With u = scale * x A^T: dB = dy^T u; du = scale * dy B; dA = du^T x; dx += du A. u is computed again rather
// than kept.
void HostOps::adapter_backward(const AdapterShape& shape, std::span<const float> x, ParameterView a,
                               ParameterView b, std::span<const float> dy, std::span<float> dx,
                               const GradientTarget& a_gradient, const GradientTarget& b_gradient,
                               StackArena& arena) const {
  compute::require_adapter_rows(shape, x.size(), dy.size());
  if (!dx.empty()) compute::require_adapter_rows(shape, dx.size(), dy.size());
  const StackArena::Frame frame(arena);
  const std::span<float> down = arena.allocate<float>(shape.rows * shape.rank);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats());
  if (dry_run_) return;
  adapter_down(shape, x, a, down, scratch);
  gradient_products_.multiply({shape.outputs, shape.rank, shape.rows},
                              rows_of(dy.data(), shape.outputs, true), rows_of(down.data(), shape.rank),
                              b_gradient, scratch);
  products_.multiply({shape.rows, shape.rank, shape.outputs}, rows_of(dy.data(), shape.outputs),
                     matrix(b, shape.rank, false), {.data = down.data(), .stride = shape.rank}, scratch);
  scale(shape.scale, down);
  gradient_products_.multiply({shape.rank, shape.inputs, shape.rows}, rows_of(down.data(), shape.rank, true),
                              rows_of(x.data(), shape.inputs), a_gradient, scratch);
  if (dx.empty()) return;
  products_.multiply({shape.rows, shape.inputs, shape.rank}, rows_of(down.data(), shape.rank),
                     matrix(a, shape.inputs, false),
                     {.data = dx.data(), .stride = shape.inputs, .accumulate = true}, scratch);
}

}  // namespace terrace
