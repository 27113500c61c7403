// The specification of the Adam update (formula and order of operations: adam.h). Plain and slow; every other
// implementation must give these bits. Must be compiled without contraction into fused multiply-adds.
#include <cmath>
#include <cstring>

#include <terrace/optimizer_cpu/internal/kernels.h>

namespace terrace::kernels {
namespace {

template <typename T>
float load(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return to_float(value);
}

void store(std::byte* to, size_t index, float value, float /*as*/) {
  std::memcpy(to + index * sizeof(float), &value, sizeof(float));
}
void store(std::byte* to, size_t index, float value, Bf16 /*as*/) {
  const Bf16 rounded = to_bf16(value);
  std::memcpy(to + index * sizeof(Bf16), &rounded, sizeof(Bf16));
}

template <typename Gradient, typename Parameter, bool kDecoupled>
void update(const AdamStep& step, const AdamRun& run) {
  for (size_t i = 0; i < run.count; ++i) {
    float p = run.master[i];
    float g = load<Gradient>(run.gradients, i) * step.gradient_scale;
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
    store(run.parameters, i, p, Parameter{});
  }
}

}  // namespace

const AdamKernels kScalarAdam = {{{
    {{{update<float, float, false>, update<float, float, true>},
      {update<float, Bf16, false>, update<float, Bf16, true>}}},
    {{{update<Bf16, float, false>, update<Bf16, float, true>},
      {update<Bf16, Bf16, false>, update<Bf16, Bf16, true>}}},
}}};

}  // namespace terrace::kernels
