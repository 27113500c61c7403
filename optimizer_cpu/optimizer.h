// The optimizers: Adam, AdamW, Adagrad, Lion, SGD and Muon over fp32 master weights. One pass reads a
// gradient, updates the master and its moments in place and writes the parameter in its own precision. There
// are no threads, no allocation and no state beyond the arguments.
//
// The arithmetic is per element, every operation rounded to fp32 once and in this order (update_scalar.cpp is
// the specification; the vector kernels give the same bits). Constants are computed in double once per step
// and rounded to fp32 once. All optimizers begin with
//
//   p = master, g = to_float(gradient) * gradient_scale
//
// and then
//
//   Adam      g = g + decay * p                                      decay = weight_decay
//   AdamW     p = p - decay * p                                      decay = lr * weight_decay
//   both      m = beta1 * m + (1 - beta1) * g
//             v = beta2 * v + (1 - beta2) * (g * g)
//             p = p - step_size * (m / (sqrt(v) * inverse_root + eps))
//                           step_size = lr / (1 - beta1^t), inverse_root = 1 / sqrt(1 - beta2^t);
//                           without bias correction lr and 1
//   Adagrad   g = g + decay * p                                      decay = weight_decay
//             s = s + g * g
//             p = p - lr * (g / (sqrt(s) + eps))
//   Lion      c = beta1 * m + (1 - beta1) * g
//             p = p - decay * p                                      decay = lr * weight_decay
//             p = p - (lr where c > 0, -lr where c < 0, else c)      so 0 stays 0 and NaN NaN
//             m = beta2 * m + (1 - beta2) * g
//   SGD       g = g + decay * p                                      decay = weight_decay
//             with momentum  b = g in step 1, else momentum * b + (1 - dampening) * g
//                            g = g + momentum * b with nesterov, else b
//             p = p - lr * g
//   Muon      in two parts (MuonPart), between which newton_schulz.h makes o of all u of a matrix:
//             m = momentum * m + (1 - momentum) * g
//             u = momentum * m + (1 - momentum) * g with nesterov, else m
//             p = p - decay * p                                      decay = lr * weight_decay
//             p = p - step_size * o                                  step_size = lr * muon_rate()
//
// and all end with
//
//   a p that is NaN becomes the NaN 0x7fc00000
//   parameter = rounded(p)
//
// Sources: Kingma and Ba, arXiv:1412.6980, algorithm 1; Loshchilov and Hutter, arXiv:1711.05101, algorithm 2;
// Duchi, Hazan and Singer, JMLR 12 (2011); Chen et al., arXiv:2302.06675, algorithm 2; Jordan et al., Muon
// (2024). The forms and the places of eps are those of torch.optim (AdamW, Adam, Adagrad without lr_decay,
// SGD, Muon) and of DeepSpeed's CPUAdam, CPUAdagrad and CPULion, but for one: where c is 0, DeepSpeed's Lion
// moves the weight by lr against the sign of that zero, so that weights that never had a gradient drift; here
// they stay, as in the paper. The decay is subtracted, not folded into a factor 1 - decay: rounding that
// factor to fp32 would change a usual decay of 1e-5 by up to 0.3 %.
//
// Where parameters are the masters (MasterForm::parameter), p is the fp32 parameter. The bits are those of
// whole masters, whose fp32 parameters are copies.
//
// Moments in bf16 (RecordLayout::moment_type) are widened when they are read and rounded by to_bf16() when
// they are written; the weight moves by the moments before that rounding. Moments in codes of one byte are
// rounded at random (moment_codes.h).
//
// Compact masters (MasterForm::remainder) are the bf16 parameter and the int16 remainder together: bits(p) =
// (bits(bf16) << 16) + remainder. Every p that is no NaN survives that exactly, so the compact form gives the
// bits of the whole form, in every step, for masters, moments and parameters. A loaded NaN keeps its sign and
// upper payload by to_bf16(), with remainder 0; from the first update on it is 0x7fc00000 in both forms.
//
// The kernels use no fused multiply-add and no approximate reciprocals; denormals are kept (callers run with
// the default floating-point environment). Infinities and NaN follow IEEE 754:
//   - a NaN gradient leaves NaN in master, moments and parameter, whatever the optimizer;
//   - an infinite gradient leaves NaN in the parameter with Adam, AdamW and Adagrad (infinity / infinity), an
//     infinite parameter with SGD, and moves the weight by lr with Lion, whose moment is then infinite;
//   - a finite gradient whose square overflows makes v or s infinite, and the weight stays where it is from
//     then on;
//   - eps = 0 makes NaN of a parameter that has never had a gradient (Adam, AdamW, Adagrad);
//   - which NaN stands in a moment is not specified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

enum class OptimizerKind : uint8_t { adam, adagrad, lion, sgd, muon };

// The moments that a record keeps: Adam's m and v, Adagrad's s, Lion's and Muon's m, SGD's b.
constexpr uint32_t moment_count(OptimizerKind kind, double momentum = 0) {
  if (kind == OptimizerKind::adam) return 2;
  return kind == OptimizerKind::sgd && momentum == 0 ? 0 : 1;
}

// The most iterations of Muon, as in torch.
inline constexpr uint32_t kMostMuonIterations = 99;

// What Muon does beside its momentum (newton_schulz.h), with the numbers of torch.optim.Muon.
struct MuonSettings {
  uint32_t iterations = 5;
  double a = 3.4445, b = -4.7750, c = 2.0315;
  bool matches_adamw = false;  // muon_rate()

  bool operator==(const MuonSettings&) const = default;
};

// The factor of Muon's learning rate for a matrix. By Jordan it is sqrt(max(1, rows / columns)); with
// `matches_adamw` 0.2 * sqrt(max(rows, columns)), which makes steps as large as AdamW's (Liu et al.,
// arXiv:2502.16982).
double muon_rate(const MuonSettings& settings, uint64_t rows, uint64_t columns);

// The configuration of one parameter group. Its numbers are double, as in other trainers: 1 - beta2 of an
// fp32 beta2 = 0.999 is off by 1e-5. A setting that an optimizer's formula does not name has no effect on it.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::adam;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool adamw_mode = true;  // Adam only; false: weight_decay is added to the gradient
  bool bias_correction = true;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;  // needs a momentum and, but for Muon, no dampening, as in torch
  MuonSettings muon = {};

  bool operator==(const OptimizerSettings&) const = default;
};

// Muon's step is two: an OptimizerStep is of one of them.
enum class MuonPart : uint8_t {
  // Updates the first moment and writes u where a parameter would be. The run has the layout
  // {MasterForm::parameter, 1 or 2}, and its old parameters count for nothing.
  momentum,
  weights,  // updates the master by `gradients`, which are o; the run's layout has no moments
};

// The constants of one group in one step.
struct OptimizerStep {
  OptimizerKind kind;
  bool decoupled_decay;  // AdamW
  bool has_momentum;     // SGD
  bool nesterov;
  bool first;  // step 1
  bool keeps;  // keep_step(): records may have moments
  MuonPart part;
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float step_size;  // Adam's, else lr
  float inverse_root;
  float decay;
  float momentum;
  float one_minus_momentum;  // Muon's
  float one_minus_dampening;
  uint64_t rounding_key;  // moment_codes.h
};

// Why no step can be made of the settings, in words: "eps is -1.000000"; empty if one can.
std::string why_not(const OptimizerSettings& settings);

// `step` counts from 1 and is the same for every parameter of one optimizer step. `gradient_scale` multiplies
// every gradient: it is 1 / loss scale, times the clip coefficient. All arguments must be finite, with betas
// in [0, 1), eps >= 0 and momentum >= 0 (why_not()). Of Muon it is the momentum's part, for a square matrix.
OptimizerStep make_optimizer_step(const OptimizerSettings& settings, uint64_t step,
                                  float gradient_scale = 1.0f);
// Muon's two parts for a matrix of this shape.
struct MuonSteps {
  OptimizerStep momentum, weights;
};
MuonSteps make_muon_steps(const OptimizerSettings& settings, uint64_t step, float gradient_scale,
                          uint64_t rows, uint64_t columns);

// A step that leaves finite masters and all moments as they are and makes parameters of them, where the
// gradients are 0.
OptimizerStep keep_step();

// A run of elements of a record. All pointers are those of element 0 of the same run of tiles, for any
// `first_element`. Only elements [first_element, first_element + element_count) are read or written; the run
// may begin and end anywhere inside tiles.
struct TileRun {
  RecordLayout layout = {};              // with the moments of the optimizer
  std::byte* record = nullptr;           // the start of a tile, aligned for float
  const std::byte* gradients = nullptr;  // any alignment
  DataType gradient_type = DataType::fp32;
  // The parameters may have any alignment. They are either the very memory of `gradients`, when both types
  // are of one size, or memory that overlaps neither the gradients nor the record. Without whole
  // masters they are of master_parameter_type().
  std::byte* parameters = nullptr;
  DataType parameter_type = DataType::fp32;
  // Without whole masters, the parameters that the last update wrote: the very memory of `parameters`, or
  // memory that does not overlap it; never that of the gradients.
  const std::byte* old_parameters = nullptr;
  size_t first_element = 0;
  size_t element_count = 0;
  // Moments in codes are rounded by kernels::rounding_place_of(), which is this of element 0. The run is of
  // one tensor then and begins with a block.
  uint64_t rounding_place = 0;
  // Above 0 the parameters are rounded by round_to_quantized() of quantization.h to so many bits; the run is
  // of whole blocks, and masters are whole.
  uint32_t parameter_bits = 0;
};
void update_tiles(InstructionSet set, const OptimizerStep& step, const TileRun& tiles);

}  // namespace terrace
