// What the host gives and wants, and the row-wise operations: norms, linear layers, GELU and sums.
#include <terrace/reference/model/compute/host_ops.h>

#include <terrace/reference/model/compute/internal/kernel_table.h>
#include <terrace/reference/model/compute/internal/shapes.h>

#include <algorithm>

namespace terrace {
namespace {

// Elements of an activation that one task takes: 64 KiB of fp32.
constexpr uint64_t kTaskElements = 16 * 1024;

}  // namespace

HostOps::HostOps(Workers& workers, InstructionSet set, ProductType products, bool dry_run)
    : Ops(dry_run),
      workers_(workers),
      set_(set),
      kernels_(compute::kernels_of(set)),
      products_(workers, set, products),
      gradient_products_(products_, set) {}

void HostOps::send_ids(std::span<const int32_t>, std::span<int32_t>) const {
  TERRACE_ASSERT(false, "token ids are read where they are");
}

void HostOps::fill_rotary(const RotaryTable& table, uint64_t pairs, RotaryFill fill,
                          StackArena& arena) const {
  const StackArena::Frame frame(arena);
  const std::span<float> frequencies = arena.allocate<float>(pairs);
  if (!dry_run_) fill(table, frequencies);
}

void HostOps::fetch(std::span<const float> results, std::span<float> wanted) const {
  TERRACE_ASSERT(results.data() == wanted.data(), "results are left where they are wanted");
}

void HostOps::copy(std::span<const float> x, std::span<float> y) const {
  TERRACE_ASSERT(x.size() == y.size(), "a copy keeps the shape");
  if (!dry_run_) std::copy(x.begin(), x.end(), y.begin());
}

void HostOps::copy_rows(const RowCopyShape& shape, std::span<const float> x, std::span<float> y) const {
  compute::require_copied_rows(shape, x.size(), y.size());
  if (dry_run_) return;
  for_row_blocks(shape.rows, shape.width, [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row)
      std::copy_n(x.data() + row * shape.from_stride, shape.width, y.data() + row * shape.to_stride);
  });
}

void HostOps::set_zero(std::span<float> x) const {
  if (!dry_run_) std::fill(x.begin(), x.end(), 0.0f);
}

std::span<const float> HostOps::as_floats(ParameterView parameter, uint64_t count, StackArena& arena) const {
  if (parameter.type == DataType::fp32) return {reinterpret_cast<const float*>(parameter.data), count};
  const std::span<float> values = arena.allocate<float>(count);
  if (!dry_run_) kernels_.widen(parameter.data, compute::format_of(parameter.type), values.data(), count);
  return values;
}

void HostOps::for_row_blocks(uint64_t rows, uint64_t width,
                             FunctionRef<void(uint64_t, uint64_t)> body) const {
  const uint64_t block = std::max<uint64_t>(kTaskElements / std::max<uint64_t>(width, 1), 1);
  workers_.parallel_for(divide_up(rows, block), [&](size_t index) {
    const uint64_t first = index * block;
    body(first, std::min(block, rows - first));
  });
}

void HostOps::land(const float* values, const GradientTarget& target, uint64_t first_element,
                   uint64_t count) const {
  if (target.view.data == nullptr) return;
  kernels_.land(values, target.view.data + first_element * bytes_of(target.type),
                compute::format_of(target.type), target.view.accumulate, count);
}

void HostOps::land_column_sums(const RowShape& shape, const float* dy, const GradientTarget& target) const {
  if (target.view.data == nullptr) return;
  workers_.parallel_for(divide_up(shape.width, compute::kColumnSlab), [&](size_t index) {
    const uint64_t first = index * compute::kColumnSlab;
    const uint64_t columns = std::min(compute::kColumnSlab, shape.width - first);
    float sums[compute::kColumnSlab];
    kernels_.column_sums(dy + first, shape.width, shape.rows, columns, sums);
    land(sums, target, first, columns);
  });
}

void HostOps::layer_norm_forward(const NormShape& shape, std::span<const float> x, ParameterView gamma,
                                 ParameterView beta, std::span<float> y, const NormStatistics& statistics,
                                 StackArena& arena) const {
  compute::require_norm_rows(shape, {x.size(), y.size()});
  const StackArena::Frame frame(arena);
  const std::span<const float> gammas = as_floats(gamma, shape.width, arena);
  const std::span<const float> betas = as_floats(beta, shape.width, arena);
  if (dry_run_) return;
  for_row_blocks(shape.rows, shape.width, [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row) {
      kernels_.norm_row(x.data() + row * shape.width, gammas.data(), betas.data(),
                        y.data() + row * shape.width, shape.width, shape.epsilon, &statistics.means[row],
                        &statistics.inverse_deviations[row]);
    }
  });
}

void HostOps::layer_norm_backward(const NormShape& shape, std::span<const float> x,
                                  const NormStatistics& statistics, ParameterView gamma,
                                  std::span<const float> dy, std::span<float> dx,
                                  const GradientTarget& gamma_gradient, const GradientTarget& beta_gradient,
                                  StackArena& arena) const {
  compute::require_norm_rows(shape, {x.size(), dy.size(), dx.size()});
  const StackArena::Frame frame(arena);
  const std::span<const float> gammas = as_floats(gamma, shape.width, arena);
  if (dry_run_) return;
  for_row_blocks(shape.rows, shape.width, [&](uint64_t first, uint64_t count) {
    for (uint64_t row = first; row < first + count; ++row) {
      kernels_.norm_row_backward(dy.data() + row * shape.width, x.data() + row * shape.width, gammas.data(),
                                 statistics.means[row], statistics.inverse_deviations[row],
                                 dx.data() + row * shape.width, shape.width);
    }
  });
  if (gamma_gradient.view.data == nullptr && beta_gradient.view.data == nullptr) return;
  workers_.parallel_for(divide_up(shape.width, compute::kColumnSlab), [&](size_t index) {
    const uint64_t first = index * compute::kColumnSlab;
    const uint64_t columns = std::min(compute::kColumnSlab, shape.width - first);
    float gamma_sums[compute::kColumnSlab], beta_sums[compute::kColumnSlab];
    kernels_.norm_column_sums(dy.data() + first, x.data() + first, shape.width, statistics.means.data(),
                              statistics.inverse_deviations.data(), shape.rows, columns, gamma_sums,
                              beta_sums);
    land(gamma_sums, gamma_gradient, first, columns);
    land(beta_sums, beta_gradient, first, columns);
  });
}

ParameterView HostOps::decode_weight(const CodedWeight& weight, const std::byte* words,
                                     StackArena& arena) const {
  const uint64_t bytes = bytes_of(weight.type);
  std::byte* const to = arena.allocate<std::byte>(weight.elements * bytes).data();
  if (dry_run_) return {to, weight.type};
  const uint64_t block_bytes = words_of_block(weight.code) * sizeof(float);
  for_row_blocks(divide_up(weight.elements, kCodedBlock), kCodedBlock, [&](uint64_t block, uint64_t count) {
    const uint64_t first = block * kCodedBlock;
    decode_weights(set_, weight.code, words + block * block_bytes, to + first * bytes, weight.type,
                   std::min(count * kCodedBlock, weight.elements - first));
  });
  return {to, weight.type};
}

void HostOps::linear_forward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                             ParameterView bias, std::span<float> y, StackArena& arena) const {
  compute::require_linear_rows(shape, x.size(), y.size());
  const StackArena::Frame frame(arena);
  const std::span<const float> biases =
      shape.biased ? as_floats(bias, shape.outputs, arena) : std::span<const float>();
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats());
  if (dry_run_) return;
  products_.multiply({.rows = shape.rows, .columns = shape.outputs, .depth = shape.inputs},
                     compute::rows_of(x.data(), shape.inputs), compute::weight_of(shape, weight, false),
                     {.data = y.data(), .stride = shape.outputs, .bias = biases.data()}, scratch);
}

void HostOps::linear_backward(const LinearShape& shape, std::span<const float> x, ParameterView weight,
                              std::span<const float> dy, std::span<float> dx, InputGradient existing,
                              const GradientTarget& weight_gradient, const GradientTarget& bias_gradient,
                              StackArena& arena) const {
  compute::require_linear_rows(shape, x.size(), dy.size());
  compute::require_linear_rows(shape, dx.size(), dy.size());
  const StackArena::Frame frame(arena);
  const ThreadScratch scratch(arena, workers_, Products::workspace_floats());
  if (dry_run_) return;
  products_.multiply(
      {.rows = shape.rows, .columns = shape.inputs, .depth = shape.outputs},
      compute::rows_of(dy.data(), shape.outputs), compute::weight_of(shape, weight, true),
      {.data = dx.data(), .stride = shape.inputs, .accumulate = existing == InputGradient::add}, scratch);
  if (weight_gradient.view.data != nullptr) {
    const Operand across_x = compute::rows_of(x.data(), shape.inputs, !shape.outputs_first);
    const Operand across_dy = compute::rows_of(dy.data(), shape.outputs, shape.outputs_first);
    if (shape.outputs_first) {
      gradient_products_.multiply({.rows = shape.outputs, .columns = shape.inputs, .depth = shape.rows},
                                  across_dy, across_x, weight_gradient, scratch);
    } else {
      gradient_products_.multiply({.rows = shape.inputs, .columns = shape.outputs, .depth = shape.rows},
                                  across_x, across_dy, weight_gradient, scratch);
    }
  }
  if (shape.biased) land_column_sums({shape.rows, shape.outputs}, dy.data(), bias_gradient);
}

void HostOps::gelu_forward(std::span<const float> x, std::span<float> y) const {
  TERRACE_ASSERT(x.size() == y.size(), "GELU keeps the shape");
  if (dry_run_) return;
  for_row_blocks(x.size(), 1, [&](uint64_t first, uint64_t count) {
    kernels_.gelu(x.data() + first, y.data() + first, count);
  });
}

void HostOps::gelu_backward(std::span<const float> x, std::span<float> dy) const {
  TERRACE_ASSERT(x.size() == dy.size(), "GELU keeps the shape");
  if (dry_run_) return;
  for_row_blocks(x.size(), 1, [&](uint64_t first, uint64_t count) {
    kernels_.gelu_backward(x.data() + first, dy.data() + first, count);
  });
}

void HostOps::add(std::span<const float> x, std::span<float> y) const {
  TERRACE_ASSERT(x.size() == y.size(), "a sum keeps the shape");
  if (dry_run_) return;
  for_row_blocks(x.size(), 1, [&](uint64_t first, uint64_t count) {
    kernels_.add(y.data() + first, x.data() + first, y.data() + first, count);
  });
}

}  // namespace terrace
