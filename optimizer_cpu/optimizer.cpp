#include <terrace/optimizer_cpu/optimizer.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/internal/kernels.h>

namespace terrace {
namespace {

bool is_beta(double value) {
  return value >= 0 && value < 1;
}

bool overlap(const std::byte* a, size_t a_bytes, const std::byte* b, size_t b_bytes) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a);
  const auto b_begin = reinterpret_cast<uintptr_t>(b);
  return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

// Finds the kernel, after checking what the type system cannot: the rule for writing over the gradients.
kernels::AdamKernel choose_kernel(InstructionSet set, const OptimizerStep& step, const std::byte* gradients,
                                  DataType gradient_type, const std::byte* parameters,
                                  DataType parameter_type, size_t element_count) {
  TERRACE_ASSERT(is_supported(set), "this machine has no " + std::string(name_of(set)));
  const bool in_place = gradients == parameters && bytes_of(gradient_type) == bytes_of(parameter_type);
  TERRACE_ASSERT(in_place || !overlap(gradients, element_count * bytes_of(gradient_type), parameters,
                                      element_count * bytes_of(parameter_type)),
                 std::string(name_of(parameter_type)) + " parameters overlap other " +
                     std::string(name_of(gradient_type)) + " gradients");
  return kernels::find_adam_kernels(set)
      ->update[kernels::index_of(gradient_type)][kernels::index_of(parameter_type)][step.decoupled_decay];
}

}  // namespace

OptimizerStep make_optimizer_step(const OptimizerSettings& settings, uint64_t step, float gradient_scale) {
  TERRACE_ASSERT(step >= 1, "optimizer steps count from 1");
  TERRACE_ASSERT(is_beta(settings.beta1) && is_beta(settings.beta2),
                 "betas are " + std::to_string(settings.beta1) + " and " + std::to_string(settings.beta2));
  TERRACE_ASSERT(settings.eps >= 0, "eps is " + std::to_string(settings.eps));
  TERRACE_ASSERT(
      std::isfinite(settings.lr) && std::isfinite(settings.weight_decay),
      "lr is " + std::to_string(settings.lr) + ", weight_decay " + std::to_string(settings.weight_decay));
  double correction1 = 1;
  double correction2 = 1;
  if (settings.bias_correction) {
    const auto t = static_cast<double>(step);
    correction1 = 1 - std::pow(settings.beta1, t);
    correction2 = 1 - std::pow(settings.beta2, t);
  }
  return OptimizerStep{
      .gradient_scale = gradient_scale,
      .beta1 = static_cast<float>(settings.beta1),
      .one_minus_beta1 = static_cast<float>(1 - settings.beta1),
      .beta2 = static_cast<float>(settings.beta2),
      .one_minus_beta2 = static_cast<float>(1 - settings.beta2),
      .eps = static_cast<float>(settings.eps),
      .step_size = static_cast<float>(settings.lr / correction1),
      .inverse_root = static_cast<float>(1 / std::sqrt(correction2)),
      .decay = static_cast<float>(settings.adamw_mode ? settings.lr * settings.weight_decay
                                                      : settings.weight_decay),
      .decoupled_decay = settings.adamw_mode,
  };
}

void update_tiles(InstructionSet set, const OptimizerStep& step, const TileRun& tiles) {
  TERRACE_ASSERT(tiles.layout == RecordLayout{}, "records are fp32 masters and two fp32 moments");
  if (tiles.element_count == 0) return;
  const size_t gradient_bytes = bytes_of(tiles.gradient_type);
  const size_t parameter_bytes = bytes_of(tiles.parameter_type);
  const std::byte* gradients = tiles.gradients + tiles.first_element * gradient_bytes;
  std::byte* parameters = tiles.parameters + tiles.first_element * parameter_bytes;
  const kernels::AdamKernel update = choose_kernel(set, step, gradients, tiles.gradient_type, parameters,
                                                   tiles.parameter_type, tiles.element_count);
  size_t element = tiles.first_element;
  const size_t end = tiles.first_element + tiles.element_count;
  while (element != end) {
    const size_t in_tile = element % kTileElements;
    const size_t count = std::min(kTileElements - in_tile, end - element);
    auto* tile = reinterpret_cast<float*>(tiles.record + element / kTileElements * tiles.layout.tile_bytes());
    update(step, kernels::AdamRun{
                     .master = tile + in_tile,
                     .exp_avg = tile + kTileElements + in_tile,
                     .exp_avg_sq = tile + 2 * kTileElements + in_tile,
                     .gradients = gradients,
                     .parameters = parameters,
                     .count = count,
                     .continuation_gap_bytes = tiles.layout.tile_bytes() - kTileElements * sizeof(float),
                 });
    element += count;
    gradients += count * gradient_bytes;
    parameters += count * parameter_bytes;
  }
}

void update_arrays(InstructionSet set, const OptimizerStep& step, const ArrayRun& arrays) {
  if (arrays.element_count == 0) return;
  const kernels::AdamKernel update =
      choose_kernel(set, step, arrays.gradients, arrays.gradient_type, arrays.parameters,
                    arrays.parameter_type, arrays.element_count);
  update(step, kernels::AdamRun{
                   .master = arrays.master,
                   .exp_avg = arrays.exp_avg,
                   .exp_avg_sq = arrays.exp_avg_sq,
                   .gradients = arrays.gradients,
                   .parameters = arrays.parameters,
                   .count = arrays.element_count,
                   .continuation_gap_bytes = 0,
               });
}

}  // namespace terrace
