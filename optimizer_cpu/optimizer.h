// Adam and AdamW over fp32 master weights and moments: one pass that reads a gradient, updates three numbers
// in place and writes the parameter in its own precision. No threads, no allocation, no state beyond the
// arguments.
//
// The arithmetic, per element, every operation rounded to fp32 once and in this order (adam_scalar.cpp is the
// specification; the vector kernels give the same bits):
//
//   g = to_float(gradient) * gradient_scale
//   decoupled decay (AdamW):  p = p - decay * p              decay = lr * weight_decay
//   else (Adam with L2):      g = g + decay * p              decay = weight_decay
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * (g * g)
//   p = p - step_size * (m / (sqrt(v) * inverse_root + eps))
//                                                            step_size = lr / (1 - beta1^t)
//                                                            inverse_root = 1 / sqrt(1 - beta2^t)
//
// without bias correction step_size = lr and inverse_root = 1. Sources: Kingma and Ba, arXiv:1412.6980,
// algorithm 1; Loshchilov and Hutter, arXiv:1711.05101, algorithm 2; the form and the place of eps are those
// of torch.optim.AdamW and DeepSpeed's CPUAdam. The decay is subtracted, not folded into a factor 1 - decay:
// rounding that factor to fp32 would change a usual decay of 1e-5 by up to 0.3 %.
//
// No fused multiply-add, no approximate reciprocals; denormals are kept (callers run with the default
// floating-point environment). Infinities and NaN follow IEEE 754: an infinite or NaN gradient leaves NaN in
// the parameter. Which NaN, where two meet, is not specified. eps = 0 makes NaN of a parameter that has never
// had a gradient.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

enum class OptimizerKind : uint8_t { adam };

// The moments that a record keeps for it.
constexpr uint32_t moment_count(OptimizerKind /*kind*/) {
  return 2;
}

// One parameter group, as its configuration has it. In double, as other trainers hold these: 1 - beta2 of an
// fp32 beta2 = 0.999 is off by 1e-5.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::adam;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool adamw_mode = true;  // false: weight_decay is added to the gradient
  bool bias_correction = true;

  bool operator==(const OptimizerSettings&) const = default;
};

// The constants of one group in one step, each computed in double and rounded to fp32 once.
struct OptimizerStep {
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float step_size;
  float inverse_root;
  float decay;
  bool decoupled_decay;
};

// `step` counts from 1 and is the same for every parameter of one optimizer step. `gradient_scale` multiplies
// every gradient: 1 / loss scale, times the clip coefficient. lr and weight_decay finite, betas in [0, 1),
// eps >= 0.
OptimizerStep make_optimizer_step(const OptimizerSettings& settings, uint64_t step,
                                  float gradient_scale = 1.0f);

// A run of elements of a record. All three pointers are those of element 0 of the same run of tiles, whatever
// `first_element` is. Only elements [first_element, first_element + element_count) are read or written; the
// run may begin and end anywhere inside tiles.
struct TileRun {
  RecordLayout layout = {};
  std::byte* record = nullptr;           // the start of a tile, aligned for float
  const std::byte* gradients = nullptr;  // any alignment
  DataType gradient_type = DataType::fp32;
  // Any alignment. Either the very memory of `gradients`, when both types are of one size, or memory that
  // overlaps neither the gradients nor the record.
  std::byte* parameters = nullptr;
  DataType parameter_type = DataType::fp32;
  size_t first_element = 0;
  size_t element_count = 0;
};
void update_tiles(InstructionSet set, const OptimizerStep& step, const TileRun& tiles);

// The same over plain arrays of `element_count` elements.
struct ArrayRun {
  float* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const std::byte* gradients = nullptr;
  DataType gradient_type = DataType::fp32;
  std::byte* parameters = nullptr;  // as in TileRun
  DataType parameter_type = DataType::fp32;
  size_t element_count = 0;
};
void update_arrays(InstructionSet set, const OptimizerStep& step, const ArrayRun& arrays);

}  // namespace terrace
