// The optimizers' rules for one vector, for the vector files that have updates. It is included behind
// vectors-inl.h, once per target as that one is.
#include <terrace/optimizer_cpu/update_kernels.h>

#if defined(TERRACE_OPTIMIZER_CPU_RULES) == defined(HWY_TARGET_TOGGLE)  // include guard, once per target
#ifdef TERRACE_OPTIMIZER_CPU_RULES
#undef TERRACE_OPTIMIZER_CPU_RULES
#else
#define TERRACE_OPTIMIZER_CPU_RULES
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

HWY_INLINE HWY_ATTR FloatVector with_canonical_nan(FloatVector p) {
  const hn::Rebind<uint32_t, Floats> du;
  const auto nan = hn::BitCast(Floats(), hn::Set(du, kCanonicalNan));
  return hn::IfThenElse(hn::IsNaN(p), nan, p);
}

// What all rules are made with, and what each does to one vector of gradients g, masters p and moments m and
// v.
template <bool kDecoupled>
struct Adam {
  static constexpr Rule kRule = kDecoupled ? Rule::adamw : Rule::adam;
  static constexpr size_t kMoments = 2;
  FloatVector beta1, one_minus_beta1, beta2, one_minus_beta2, eps, step_size, inverse_root, decay;
  HWY_INLINE HWY_ATTR explicit Adam(const OptimizerStep& step)
      : beta1(hn::Set(Floats(), step.beta1)),
        one_minus_beta1(hn::Set(Floats(), step.one_minus_beta1)),
        beta2(hn::Set(Floats(), step.beta2)),
        one_minus_beta2(hn::Set(Floats(), step.one_minus_beta2)),
        eps(hn::Set(Floats(), step.eps)),
        step_size(hn::Set(Floats(), step.step_size)),
        inverse_root(hn::Set(Floats(), step.inverse_root)),
        decay(hn::Set(Floats(), step.decay)) {}
  HWY_INLINE HWY_ATTR void update(FloatVector g, FloatVector& p, FloatVector& m, FloatVector& v) const {
    if constexpr (kDecoupled) {
      p = hn::Sub(p, hn::Mul(decay, p));
    } else {
      g = hn::Add(g, hn::Mul(decay, p));
    }
    m = hn::Add(hn::Mul(beta1, m), hn::Mul(one_minus_beta1, g));
    v = hn::Add(hn::Mul(beta2, v), hn::Mul(one_minus_beta2, hn::Mul(g, g)));
    const auto denominator = hn::Add(hn::Mul(hn::Sqrt(v), inverse_root), eps);
    p = hn::Sub(p, hn::Mul(step_size, hn::Div(m, denominator)));
  }
};

struct Adagrad {
  static constexpr Rule kRule = Rule::adagrad;
  static constexpr size_t kMoments = 1;
  FloatVector eps, step_size, decay;
  HWY_INLINE HWY_ATTR explicit Adagrad(const OptimizerStep& step)
      : eps(hn::Set(Floats(), step.eps)),
        step_size(hn::Set(Floats(), step.step_size)),
        decay(hn::Set(Floats(), step.decay)) {}
  HWY_INLINE HWY_ATTR void update(FloatVector g, FloatVector& p, FloatVector& m, FloatVector&) const {
    g = hn::Add(g, hn::Mul(decay, p));
    m = hn::Add(m, hn::Mul(g, g));
    p = hn::Sub(p, hn::Mul(step_size, hn::Div(g, hn::Add(hn::Sqrt(m), eps))));
  }
};

struct Lion {
  static constexpr Rule kRule = Rule::lion;
  static constexpr size_t kMoments = 1;
  FloatVector beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, decay;
  HWY_INLINE HWY_ATTR explicit Lion(const OptimizerStep& step)
      : beta1(hn::Set(Floats(), step.beta1)),
        one_minus_beta1(hn::Set(Floats(), step.one_minus_beta1)),
        beta2(hn::Set(Floats(), step.beta2)),
        one_minus_beta2(hn::Set(Floats(), step.one_minus_beta2)),
        step_size(hn::Set(Floats(), step.step_size)),
        decay(hn::Set(Floats(), step.decay)) {}
  HWY_INLINE HWY_ATTR void update(FloatVector g, FloatVector& p, FloatVector& m, FloatVector&) const {
    const auto zero = hn::Zero(Floats());
    const auto c = hn::Add(hn::Mul(beta1, m), hn::Mul(one_minus_beta1, g));
    const auto down = hn::IfThenElse(hn::Lt(c, zero), hn::Neg(step_size), c);
    p = hn::Sub(p, hn::Mul(decay, p));
    p = hn::Sub(p, hn::IfThenElse(hn::Gt(c, zero), step_size, down));
    m = hn::Add(hn::Mul(beta2, m), hn::Mul(one_minus_beta2, g));
  }
};

struct Sgd {
  static constexpr Rule kRule = Rule::sgd;
  static constexpr size_t kMoments = 0;
  FloatVector step_size, decay;
  HWY_INLINE HWY_ATTR explicit Sgd(const OptimizerStep& step)
      : step_size(hn::Set(Floats(), step.step_size)), decay(hn::Set(Floats(), step.decay)) {}
  HWY_INLINE HWY_ATTR void update(FloatVector g, FloatVector& p, FloatVector&, FloatVector&) const {
    p = hn::Sub(p, hn::Mul(step_size, hn::Add(g, hn::Mul(decay, p))));
  }
};

struct SgdMomentum {
  static constexpr Rule kRule = Rule::sgd_momentum;
  static constexpr size_t kMoments = 1;
  FloatVector step_size, decay, momentum, one_minus_dampening;
  bool first, nesterov;
  HWY_INLINE HWY_ATTR explicit SgdMomentum(const OptimizerStep& step)
      : step_size(hn::Set(Floats(), step.step_size)),
        decay(hn::Set(Floats(), step.decay)),
        momentum(hn::Set(Floats(), step.momentum)),
        one_minus_dampening(hn::Set(Floats(), step.one_minus_dampening)),
        first(step.first),
        nesterov(step.nesterov) {}
  HWY_INLINE HWY_ATTR void update(FloatVector g, FloatVector& p, FloatVector& m, FloatVector&) const {
    g = hn::Add(g, hn::Mul(decay, p));
    m = first ? g : hn::Add(hn::Mul(momentum, m), hn::Mul(one_minus_dampening, g));
    p = hn::Sub(p, hn::Mul(step_size, nesterov ? hn::Add(g, hn::Mul(momentum, m)) : m));
  }
};

struct MuonMomentum {
  static constexpr Rule kRule = Rule::muon_momentum;
  static constexpr size_t kMoments = 1;
  FloatVector momentum, one_minus_momentum;
  bool nesterov;
  HWY_INLINE HWY_ATTR explicit MuonMomentum(const OptimizerStep& step)
      : momentum(hn::Set(Floats(), step.momentum)),
        one_minus_momentum(hn::Set(Floats(), step.one_minus_momentum)),
        nesterov(step.nesterov) {}
  HWY_INLINE HWY_ATTR void update(FloatVector g, FloatVector& p, FloatVector& m, FloatVector&) const {
    const auto part = hn::Mul(one_minus_momentum, g);
    m = hn::Add(hn::Mul(momentum, m), part);
    p = nesterov ? hn::Add(hn::Mul(momentum, m), part) : m;
  }
};

struct MuonWeights {
  static constexpr Rule kRule = Rule::muon_weights;
  static constexpr size_t kMoments = 0;
  FloatVector step_size, decay;
  HWY_INLINE HWY_ATTR explicit MuonWeights(const OptimizerStep& step)
      : step_size(hn::Set(Floats(), step.step_size)), decay(hn::Set(Floats(), step.decay)) {}
  HWY_INLINE HWY_ATTR void update(FloatVector g, FloatVector& p, FloatVector&, FloatVector&) const {
    p = hn::Sub(p, hn::Mul(decay, p));
    p = hn::Sub(p, hn::Mul(step_size, g));
  }
};

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard
