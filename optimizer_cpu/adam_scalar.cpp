// The specification of the Adam update (formula and order of operations: optimizer.h). Plain and slow; every
// other implementation must give these bits. Must be compiled without contraction into fused multiply-adds.
#include <cmath>

#include <terrace/optimizer_cpu/internal/elements.h>
#include <terrace/optimizer_cpu/internal/kernels.h>

namespace terrace::kernels {
namespace {

template <typename Gradient, typename Parameter, bool kDecoupled>
void update(const OptimizerStep& step, const AdamRun& run) {
  for (size_t i = 0; i < run.count; ++i) {
    float p = run.master[i];
    float g = load_element<Gradient>(run.gradients, i) * step.gradient_scale;
    if constexpr (kDecoupled) {
      p = p - step.decay * p;
    } else {
      g = g + step.decay * p;
    }
    const float m = step.beta1 * run.exp_avg[i] + step.one_minus_beta1 * g;
    const float v = step.beta2 * run.exp_avg_sq[i] + step.one_minus_beta2 * (g * g);
    p = p - step.step_size * (m / (std::sqrt(v) * step.inverse_root + step.eps));
    run.master[i] = p;
    run.exp_avg[i] = m;
    run.exp_avg_sq[i] = v;
    store_element<Parameter>(run.parameters, i, p);
  }
}

template <typename Gradient>
constexpr AdamByParameter kUpdates = {{
    {update<Gradient, float, false>, update<Gradient, float, true>},
    {update<Gradient, Bf16, false>, update<Gradient, Bf16, true>},
    {update<Gradient, Fp16, false>, update<Gradient, Fp16, true>},
}};

}  // namespace

const AdamKernels kScalarAdam = {{kUpdates<float>, kUpdates<Bf16>, kUpdates<Fp16>}};

}  // namespace terrace::kernels
