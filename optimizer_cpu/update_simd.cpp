// The optimizer updates with AVX2 and AVX-512, bit for bit as update_scalar.cpp. How this file is compiled:
// internal/vectors-inl.h. Rules are written once for one vector (internal/rules-inl.h); the loop around them
// loads and stores whatever types a run has.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/optimizer_cpu/update_simd.cpp"
#include <terrace/optimizer_cpu/internal/vectors-inl.h>
// It comes behind vectors-inl.h.
#include <terrace/optimizer_cpu/internal/rules-inl.h>
#include <terrace/optimizer_cpu/update_kernels.h>

#include <algorithm>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

constexpr size_t kVector = hn::MaxLanes(Floats());
// A whole number of cache lines of every type.
constexpr size_t kLineBytes = 64;
constexpr size_t kGroup = kLineBytes;
static_assert(kGroup % kVector == 0);

// How far ahead memory is asked for. The hardware's own prefetching starts anew at every 4 KiB page and so
// several times in each array of a tile.
constexpr size_t kAheadElements = 512;
static_assert(kAheadElements % kGroup == 0 && kAheadElements < kTileElements);

// The types of a run: of any, looked at for every vector, whose branches always go the same way; and of the
// usual one, known to the compiler. (Measured on Zen 5: 20 % of the time in the caches, nothing beside
// memory.)
struct AnyTypes {
  MasterForm form;
  DataType moment, gradient, parameter;
  explicit AnyTypes(const UpdateRun& run)
      : form(run.form),
        moment(number_type_of(run.moment_type)),
        gradient(run.gradient_type),
        parameter(run.parameter_type) {}
};
struct UsualTypes {
  static constexpr MasterForm form = MasterForm::whole;
  static constexpr DataType moment = DataType::fp32, gradient = DataType::bf16, parameter = DataType::bf16;
  explicit UsualTypes(const UpdateRun&) {}
  static bool are_of(const UpdateRun& run) {
    return run.form == form && number_type_of(run.moment_type) == moment && run.gradient_type == gradient &&
           run.parameter_type == parameter;
  }
};

HWY_INLINE HWY_ATTR FloatVector load_any(const std::byte* from, size_t i, DataType type) {
  const std::byte* const at = from + i * bytes_of(type);
  if (type == DataType::fp32) return load_floats(Floats(), at, float{});
  return type == DataType::bf16 ? load_floats(Floats(), at, Bf16{}) : load_floats(Floats(), at, Fp16{});
}

HWY_INLINE HWY_ATTR void store_any(FloatVector values, std::byte* to, size_t i, DataType type) {
  std::byte* const at = to + i * bytes_of(type);
  if (type == DataType::fp32) return store_floats(values, at, float{});
  if (type == DataType::bf16) return store_floats(values, at, Bf16{});
  store_floats(values, at, Fp16{});
}

HWY_INLINE HWY_ATTR FloatVector load_master(MasterForm form, const UpdateRun& run, size_t i) {
  if (form == MasterForm::whole) return load_any(run.master, i, DataType::fp32);
  if (form == MasterForm::parameter) return load_any(run.old_parameters, i, DataType::fp32);
  return join_floats(run.old_parameters + i * sizeof(Bf16), run.master + i * sizeof(int16_t));
}

HWY_INLINE HWY_ATTR void store_master(FloatVector values, MasterForm form, const UpdateRun& run, size_t i) {
  if (form == MasterForm::whole) return store_any(values, run.master, i, DataType::fp32);
  if (form == MasterForm::parameter) return;
  store_low_halves(values, run.master + i * sizeof(int16_t));
}

template <typename Types, typename R>
HWY_INLINE HWY_ATTR void update_vector(const Types& types, const R& rule, FloatVector gradient_scale,
                                       const UpdateRun& run, size_t i) {
  const auto g = hn::Mul(load_any(run.gradients, i, types.gradient), gradient_scale);
  auto p = load_master(types.form, run, i);
  auto m = p, v = p;  // of rules without moments, not looked at
  if constexpr (R::kMoments > 0) m = load_any(run.moments[0], i, types.moment);
  if constexpr (R::kMoments > 1) v = load_any(run.moments[1], i, types.moment);
  rule.update(g, p, m, v);
  p = with_canonical_nan(p);
  store_master(p, types.form, run, i);
  if constexpr (R::kMoments > 0) store_any(m, run.moments[0], i, types.moment);
  if constexpr (R::kMoments > 1) store_any(v, run.moments[1], i, types.moment);
  store_any(p, run.parameters, i, types.parameter);
}

// The lines of one group, of elements of 2 or of 4 bytes, for writing: that asks for what the caches of other
// cores would have to be asked for later. (Measured on Zen 5: 5 to 10 % of the bandwidth.)
HWY_INLINE HWY_ATTR void prefetch_group(const std::byte* base, size_t element, size_t element_bytes,
                                        size_t gap_bytes) {
  // As integers: the address may lie beyond the caller's memory, where a prefetch does nothing.
  const uintptr_t at =
      reinterpret_cast<uintptr_t>(base) + (element + kAheadElements) * element_bytes + gap_bytes;
  __builtin_prefetch(reinterpret_cast<const void*>(at), 1);
  __builtin_prefetch(reinterpret_cast<const void*>(at + kLineBytes), 1);
  if (element_bytes == sizeof(float)) {
    __builtin_prefetch(reinterpret_cast<const void*>(at + 2 * kLineBytes), 1);
    __builtin_prefetch(reinterpret_cast<const void*>(at + 3 * kLineBytes), 1);
  }
}

// Elements [begin, end), whole groups only, whose prefetches skip the gaps or not.
template <typename Types, typename R>
HWY_INLINE HWY_ATTR void update_groups(const Types& types, const R& rule, FloatVector gradient_scale,
                                       const UpdateRun& run, size_t begin, size_t end, bool skip_gaps) {
  const size_t master_gap_bytes = skip_gaps ? run.master_gap_bytes : 0;
  const size_t moment_gap_bytes = skip_gaps ? run.moment_gap_bytes : 0;
  const size_t master_bytes = master_bytes_of(types.form);
  for (size_t i = begin; i != end; i += kGroup) {
    if (master_bytes > 0) prefetch_group(run.master, i, master_bytes, master_gap_bytes);
    for (size_t moment = 0; moment < R::kMoments; ++moment) {
      prefetch_group(run.moments[moment], i, bytes_of(types.moment), moment_gap_bytes);
    }
    prefetch_group(run.gradients, i, bytes_of(types.gradient), 0);
    if (types.form != MasterForm::whole)
      prefetch_group(run.old_parameters, i, bytes_of(master_parameter_type(types.form)), 0);
    for (size_t at = i; at != i + kGroup; at += kVector) update_vector(types, rule, gradient_scale, run, at);
  }
}

template <typename Types, typename R>
HWY_INLINE HWY_ATTR void run_typed(const R& rule, const OptimizerStep& step, const UpdateRun& caller) {
  const UpdateRun run = caller;  // of its own: no store can reach it
  const Types types(run);
  const auto gradient_scale = hn::Set(Floats(), step.gradient_scale);
  const size_t groups = run.count / kGroup * kGroup;
  const size_t turn = groups - std::min(groups, kAheadElements);
  update_groups(types, rule, gradient_scale, run, 0, turn, false);
  update_groups(types, rule, gradient_scale, run, turn, groups, true);
  const size_t whole = run.count / kVector * kVector;
  for (size_t i = groups; i != whole; i += kVector) update_vector(types, rule, gradient_scale, run, i);
  if (whole != run.count) kScalarUpdate[static_cast<size_t>(R::kRule)](step, run.after(whole));
}

template <typename R>
HWY_ATTR void run_rule(const OptimizerStep& step, const UpdateRun& run) {
  const R rule(step);
  if (UsualTypes::are_of(run)) return run_typed<UsualTypes>(rule, step, run);
  run_typed<AnyTypes>(rule, step, run);
}

const UpdateKernels kUpdate = {run_rule<Adam<false>>,  run_rule<Adam<true>>, run_rule<Adagrad>,
                               run_rule<Lion>,         run_rule<Sgd>,        run_rule<SgdMomentum>,
                               run_rule<MuonMomentum>, run_rule<MuonWeights>};

}  // namespace
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace terrace::kernels {

const UpdateKernels* find_vector_update_kernels(InstructionSet set) {
  return TERRACE_VECTOR_TABLE(set, kUpdate);
}

}  // namespace terrace::kernels
#endif
