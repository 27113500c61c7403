#include <terrace/optimizer_cpu/optimizer.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/internal/moment_kernels.h>
#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/optimizer_cpu/quantization.h>
#include <terrace/optimizer_cpu/update_kernels.h>

namespace terrace {
namespace {

bool is_beta(double value) {
  return value >= 0 && value < 1;
}

kernels::Rule rule_of(const OptimizerStep& step) {
  switch (step.kind) {
    case OptimizerKind::adam:
      return step.decoupled_decay ? kernels::Rule::adamw : kernels::Rule::adam;
    case OptimizerKind::adagrad:
      return kernels::Rule::adagrad;
    case OptimizerKind::lion:
      return kernels::Rule::lion;
    case OptimizerKind::muon:
      return step.part == MuonPart::momentum ? kernels::Rule::muon_momentum : kernels::Rule::muon_weights;
    case OptimizerKind::sgd:
      break;
  }
  return step.has_momentum ? kernels::Rule::sgd_momentum : kernels::Rule::sgd;
}

bool overlap(const std::byte* a, size_t a_bytes, const std::byte* b, size_t b_bytes) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a);
  const auto b_begin = reinterpret_cast<uintptr_t>(b);
  return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

void check_compact(const kernels::UpdateRun& run) {
  TERRACE_ASSERT(run.parameter_type == master_parameter_type(run.form),
                 std::string(name_of(run.parameter_type)) + " parameters are no part of such masters");
  TERRACE_ASSERT(run.old_parameters != nullptr, "masters without the parameters that they are made with");
  const size_t bytes = run.count * bytes_of(run.parameter_type);
  TERRACE_ASSERT(
      run.old_parameters == run.parameters || !overlap(run.old_parameters, bytes, run.parameters, bytes),
      "new parameters overlap other old ones");
}

// Elements whose moments are numbers at a time, in the nearest cache.
constexpr size_t kPieceElements = 1024;
static_assert(kPieceElements % kMomentBlock == 0 && kTileElements % kPieceElements == 0);

// The moments of `run` are codes of whole blocks.
void update_coded(InstructionSet set, kernels::UpdateKernel update, const OptimizerStep& step,
                  const kernels::UpdateRun& run, const Chance& chance) {
  TERRACE_ASSERT(run.count % kMomentBlock == 0 && chance.place % kMomentBlock == 0,
                 "codes of " + std::to_string(run.count) + " elements are no whole blocks");
  if (const kernels::CodedUpdate at_once = kernels::find_coded_update(set, rule_of(step), run))
    return at_once(step, run, chance);
  alignas(64) std::array<std::array<float, kPieceElements>, 2> numbers;
  const bool has_second = run.moments[1] != nullptr;
  for (size_t first = 0; first < run.count; first += kPieceElements) {
    kernels::UpdateRun piece = run.after(first);
    piece.count = std::min(kPieceElements, run.count - first);
    const std::array<std::byte*, 2> codes = piece.moments;
    decode_blocks(set, {codes[0], codes[1]}, piece.count,
                  {numbers[0].data(), has_second ? numbers[1].data() : nullptr});
    piece.moment_type = MomentType::fp32;
    for (size_t m = 0; m < 2; ++m) piece.moments[m] = reinterpret_cast<std::byte*>(numbers[m].data());
    piece.master_gap_bytes = piece.moment_gap_bytes = 0;
    update(step, piece);
    encode_blocks(set, {numbers[0].data(), has_second ? numbers[1].data() : nullptr}, piece.count,
                  Chance{chance.key, chance.place + first}, codes);
  }
}

}  // namespace

kernels::UpdateKernel kernels::choose_update_kernel(InstructionSet set, const OptimizerStep& step,
                                                    const RecordLayout& layout, const UpdateRun& run) {
  TERRACE_ASSERT(is_supported(set), "this machine has no " + std::string(name_of(set)));
  const bool is_of_weights = step.kind == OptimizerKind::muon && step.part == MuonPart::weights;
  const uint32_t moments = is_of_weights ? 0 : moment_count(step.kind, step.has_momentum ? 1 : 0);
  const bool may_have_more = step.keeps || (step.kind == OptimizerKind::muon && moments == 1);
  TERRACE_ASSERT(layout.moment_count == moments || (may_have_more && layout.moment_count > moments),
                 "an optimizer of " + std::to_string(moments) + " moments on records of " +
                     std::to_string(layout.moment_count));
  const size_t gradient_bytes = bytes_of(run.gradient_type);
  const size_t parameter_bytes = bytes_of(run.parameter_type);
  const bool in_place = run.gradients == run.parameters && gradient_bytes == parameter_bytes;
  TERRACE_ASSERT(in_place || !overlap(run.gradients, run.count * gradient_bytes, run.parameters,
                                      run.count * parameter_bytes),
                 std::string(name_of(run.parameter_type)) + " parameters overlap other " +
                     std::string(name_of(run.gradient_type)) + " gradients");
  if (run.form != MasterForm::whole) check_compact(run);
  return (*find_update_kernels(set))[static_cast<size_t>(rule_of(step))];
}

namespace {

std::string why_not_muon(const OptimizerSettings& s) {
  using std::to_string;
  if (!is_beta(s.momentum)) return "momentum is " + to_string(s.momentum);
  if (s.muon.iterations > kMostMuonIterations) return "iterations are " + to_string(s.muon.iterations);
  if (!std::isfinite(s.muon.a) || !std::isfinite(s.muon.b) || !std::isfinite(s.muon.c))
    return "coefficients are " + to_string(s.muon.a) + ", " + to_string(s.muon.b) + ", " +
           to_string(s.muon.c);
  return "";
}

}  // namespace

std::string why_not(const OptimizerSettings& s) {
  using std::to_string;
  if (!is_beta(s.beta1) || !is_beta(s.beta2))
    return "betas are " + to_string(s.beta1) + " and " + to_string(s.beta2);
  if (!(s.eps >= 0)) return "eps is " + to_string(s.eps);
  if (!std::isfinite(s.lr) || !std::isfinite(s.weight_decay))
    return "lr is " + to_string(s.lr) + ", weight_decay " + to_string(s.weight_decay);
  if (!(s.momentum >= 0) || !std::isfinite(s.momentum) || !std::isfinite(s.dampening))
    return "momentum is " + to_string(s.momentum) + ", dampening " + to_string(s.dampening);
  if (s.kind == OptimizerKind::muon) return why_not_muon(s);
  if (s.nesterov && !(s.momentum > 0 && s.dampening == 0))
    return "nesterov with momentum " + to_string(s.momentum) + " and dampening " + to_string(s.dampening);
  return "";
}

OptimizerStep make_optimizer_step(const OptimizerSettings& settings, uint64_t step, float gradient_scale) {
  TERRACE_ASSERT(step >= 1, "optimizer steps count from 1");
  const std::string reason = why_not(settings);
  TERRACE_ASSERT(reason.empty(), reason);
  double correction1 = 1;
  double correction2 = 1;
  if (settings.kind == OptimizerKind::adam && settings.bias_correction) {
    const auto t = static_cast<double>(step);
    correction1 = 1 - std::pow(settings.beta1, t);
    correction2 = 1 - std::pow(settings.beta2, t);
  }
  const bool is_sgd = settings.kind == OptimizerKind::sgd;
  const bool is_muon = settings.kind == OptimizerKind::muon;
  const bool decoupled = settings.kind == OptimizerKind::lion || is_muon ||
                         (settings.kind == OptimizerKind::adam && settings.adamw_mode);
  return OptimizerStep{
      .kind = settings.kind,
      .decoupled_decay = decoupled,
      .has_momentum = is_sgd && settings.momentum != 0,
      .nesterov = (is_sgd || is_muon) && settings.nesterov,
      .first = step == 1,
      .keeps = false,
      .part = MuonPart::momentum,
      .gradient_scale = gradient_scale,
      .beta1 = static_cast<float>(settings.beta1),
      .one_minus_beta1 = static_cast<float>(1 - settings.beta1),
      .beta2 = static_cast<float>(settings.beta2),
      .one_minus_beta2 = static_cast<float>(1 - settings.beta2),
      .eps = static_cast<float>(settings.eps),
      .step_size = static_cast<float>(settings.lr / correction1),
      .inverse_root = static_cast<float>(1 / std::sqrt(correction2)),
      .decay = static_cast<float>(decoupled ? settings.lr * settings.weight_decay : settings.weight_decay),
      .momentum = static_cast<float>(is_sgd || is_muon ? settings.momentum : 0),
      .one_minus_momentum = static_cast<float>(1 - settings.momentum),
      .one_minus_dampening = static_cast<float>(1 - settings.dampening),
      .rounding_key = kernels::rounding_key_of(step),
  };
}

double muon_rate(const MuonSettings& settings, uint64_t rows, uint64_t columns) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  return settings.matches_adamw ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c));
}

MuonSteps make_muon_steps(const OptimizerSettings& settings, uint64_t step, float gradient_scale,
                          uint64_t rows, uint64_t columns) {
  TERRACE_ASSERT(settings.kind == OptimizerKind::muon, "steps of Muon are made of its settings");
  MuonSteps steps{make_optimizer_step(settings, step, gradient_scale),
                  make_optimizer_step(settings, step, 1)};
  steps.weights.part = MuonPart::weights;
  steps.weights.step_size = static_cast<float>(settings.lr * muon_rate(settings.muon, rows, columns));
  return steps;
}

OptimizerStep keep_step() {
  OptimizerStep step = make_optimizer_step({.kind = OptimizerKind::sgd, .lr = 0}, 1);
  step.keeps = true;
  return step;
}

void update_tiles(InstructionSet set, const OptimizerStep& step, const TileRun& tiles) {
  if (tiles.element_count == 0) return;
  const RecordLayout& layout = tiles.layout;
  const size_t old_offset = tiles.first_element * bytes_of(master_parameter_type(layout.master));
  kernels::UpdateRun run{
      .master = nullptr,
      .moments = {},
      .gradients = tiles.gradients + tiles.first_element * bytes_of(tiles.gradient_type),
      .old_parameters = layout.master != MasterForm::whole && tiles.old_parameters != nullptr
                            ? tiles.old_parameters + old_offset
                            : nullptr,
      .parameters = tiles.parameters + tiles.first_element * bytes_of(tiles.parameter_type),
      .count = tiles.element_count,
      .form = layout.master,
      .moment_type = layout.moment_type,
      .gradient_type = tiles.gradient_type,
      .parameter_type = tiles.parameter_type,
      .master_gap_bytes = layout.tile_bytes() - layout.master_bytes(),
      .moment_gap_bytes = layout.tile_bytes() - layout.moment_bytes(),
  };
  const kernels::UpdateKernel update = kernels::choose_update_kernel(set, step, layout, run);
  TERRACE_ASSERT(tiles.parameter_bits == 0 || layout.master == MasterForm::whole,
                 "rounded parameters are no part of masters");
  size_t element = tiles.first_element;
  const size_t end = element + tiles.element_count;
  while (element != end) {
    const size_t in_tile = element % kTileElements;
    std::byte* const tile = tiles.record + element / kTileElements * layout.tile_bytes();
    run.master = tile + in_tile * run.master_element_bytes();
    for (uint32_t moment = 0; moment < layout.moment_count; ++moment) {
      run.moments[moment] = tile + layout.moment_offset(moment) + in_tile * bytes_of(layout.moment_type);
    }
    run.count = std::min(kTileElements - in_tile, end - element);
    if (layout.has_codes() && !step.keeps) {
      update_coded(set, update, step, run, {step.rounding_key, tiles.rounding_place + element});
    } else {
      update(step, run);
    }
    if (tiles.parameter_bits > 0)
      round_to_quantized(set, tiles.parameter_bits, run.parameters, run.parameter_type, run.parameters,
                         run.parameter_type, run.count);
    element += run.count;
    run = run.after(run.count);
  }
}

}  // namespace terrace
