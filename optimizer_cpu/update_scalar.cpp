// The specification of the optimizer updates (formulas and order of operations: optimizer.h). Plain and slow;
// every other implementation must give these bits. Must be compiled without contraction into fused
// multiply-adds.
#include <cmath>

#include <terrace/optimizer_cpu/internal/elements.h>
#include <terrace/optimizer_cpu/update_kernels.h>

namespace terrace::kernels {
namespace {

// The numbers of one element, as fp32. Moments that an optimizer does not have stay 0.
struct Element {
  float p, m, v;
};

void adam(const OptimizerStep& step, float g, Element& e) {
  e.m = step.beta1 * e.m + step.one_minus_beta1 * g;
  e.v = step.beta2 * e.v + step.one_minus_beta2 * (g * g);
  e.p = e.p - step.step_size * (e.m / (std::sqrt(e.v) * step.inverse_root + step.eps));
}

template <Rule kRule>
void update(const OptimizerStep& step, float g, Element& e) {
  if constexpr (kRule == Rule::adam) {
    adam(step, g + step.decay * e.p, e);
  } else if constexpr (kRule == Rule::adamw) {
    e.p = e.p - step.decay * e.p;
    adam(step, g, e);
  } else if constexpr (kRule == Rule::adagrad) {
    g = g + step.decay * e.p;
    e.m = e.m + g * g;
    e.p = e.p - step.step_size * (g / (std::sqrt(e.m) + step.eps));
  } else if constexpr (kRule == Rule::lion) {
    const float c = step.beta1 * e.m + step.one_minus_beta1 * g;
    e.p = e.p - step.decay * e.p;
    e.p = e.p - (c > 0 ? step.step_size : c < 0 ? -step.step_size : c);
    e.m = step.beta2 * e.m + step.one_minus_beta2 * g;
  } else if constexpr (kRule == Rule::muon_momentum) {
    e.m = step.momentum * e.m + step.one_minus_momentum * g;
    e.p = step.nesterov ? step.momentum * e.m + step.one_minus_momentum * g : e.m;
  } else if constexpr (kRule == Rule::muon_weights) {
    e.p = e.p - step.decay * e.p;
    e.p = e.p - step.step_size * g;
  } else {
    g = g + step.decay * e.p;
    if constexpr (kRule == Rule::sgd_momentum) {
      e.m = step.first ? g : step.momentum * e.m + step.one_minus_dampening * g;
      g = step.nesterov ? g + step.momentum * e.m : e.m;
    }
    e.p = e.p - step.step_size * g;
  }
}

float load(const std::byte* from, DataType type, size_t index) {
  switch (type) {
    case DataType::bf16:
      return load_element<Bf16>(from, index);
    case DataType::fp16:
      return load_element<Fp16>(from, index);
    case DataType::fp32:
      break;
  }
  return load_element<float>(from, index);
}

void store(std::byte* to, DataType type, size_t index, float value) {
  switch (type) {
    case DataType::bf16:
      return store_element<Bf16>(to, index, value);
    case DataType::fp16:
      return store_element<Fp16>(to, index, value);
    case DataType::fp32:
      break;
  }
  store_element<float>(to, index, value);
}

float load_master(const UpdateRun& run, size_t i) {
  if (run.form == MasterForm::whole) return load_element<float>(run.master, i);
  if (run.form == MasterForm::parameter) return load_element<float>(run.old_parameters, i);
  int16_t remainder;
  Bf16 parameter;
  std::memcpy(&remainder, run.master + i * sizeof(remainder), sizeof(remainder));
  std::memcpy(&parameter, run.old_parameters + i * sizeof(parameter), sizeof(parameter));
  return join_master(parameter, remainder);
}

void store_master(const UpdateRun& run, size_t i, float master) {
  if (run.form == MasterForm::whole) return store_element<float>(run.master, i, master);
  if (run.form == MasterForm::parameter) return;
  const int16_t remainder = remainder_of(master);
  std::memcpy(run.master + i * sizeof(remainder), &remainder, sizeof(remainder));
}

template <Rule kRule, size_t kMoments>
void run_rule(const OptimizerStep& step, const UpdateRun& run) {
  for (size_t i = 0; i < run.count; ++i) {
    Element e{load_master(run, i), 0, 0};
    if constexpr (kMoments > 0) e.m = load(run.moments[0], number_type_of(run.moment_type), i);
    if constexpr (kMoments > 1) e.v = load(run.moments[1], number_type_of(run.moment_type), i);
    update<kRule>(step, load(run.gradients, run.gradient_type, i) * step.gradient_scale, e);
    if (std::isnan(e.p)) e.p = std::bit_cast<float>(kCanonicalNan);
    store_master(run, i, e.p);
    if constexpr (kMoments > 0) store(run.moments[0], number_type_of(run.moment_type), i, e.m);
    if constexpr (kMoments > 1) store(run.moments[1], number_type_of(run.moment_type), i, e.v);
    store(run.parameters, run.parameter_type, i, e.p);
  }
}

}  // namespace

const UpdateKernels kScalarUpdate = {run_rule<Rule::adam, 2>,          run_rule<Rule::adamw, 2>,
                                     run_rule<Rule::adagrad, 1>,       run_rule<Rule::lion, 1>,
                                     run_rule<Rule::sgd, 0>,           run_rule<Rule::sgd_momentum, 1>,
                                     run_rule<Rule::muon_momentum, 1>, run_rule<Rule::muon_weights, 0>};

}  // namespace terrace::kernels
