// Steps, evaluations and what lies within them.
#include <span>
#include <string>

#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/store.h>
#include <terrace/capi/structs.h>

using namespace terrace;  // NOLINT: the functions of C are in no namespace
using c::in_store;

static_assert(sizeof(TensorId) == sizeof(uint32_t));

terrace_error* terrace_begin_step(terrace_store* store) {
  constexpr Names kCall = TERRACE_CALL(begin_step);
  // A commit that failed since the last call is told of here, before anything of the step has begun.
  const auto tell = [](terrace_store& s) { s.offloader->commits().throw_failure(); };
  if (terrace_error* lost = in_store(store, kCall, tell, c::Harmless::all)) return lost;
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_values(s, kCall);
    s.step_start = s.offloader->report().counters();
    s.offloader->begin_step();
    s.open = c::Open::step;
  });
}

terrace_error* terrace_select_micro_batch(terrace_store* store, uint32_t micro_batch) {
  return in_store(store, TERRACE_CALL(select_micro_batch),
                  [&](terrace_store& s) { s.offloader->select_micro_batch(micro_batch); });
}

terrace_error* terrace_end_micro_batch(terrace_store* store) {
  return in_store(store, TERRACE_CALL(end_micro_batch),
                  [&](terrace_store& s) { s.offloader->end_micro_batch(); });
}

terrace_error* terrace_lease(terrace_store* store, const char* key, uint32_t kind, const uint32_t* tensors,
                             uint32_t count, uint64_t* lease) {
  constexpr Names kCall = TERRACE_CALL(lease);
  const auto begin = [&](terrace_store& s) {
    c::require_pointer(key, kCall, "key");
    c::require_list(tensors, count, kCall, "tensors");
    c::require_pointer(lease, kCall, "lease");
    c::require_enum(kind, 3, kCall, "kind");
    *lease = s.offloader->begin_lease(key, {reinterpret_cast<const TensorId*>(tensors), count},
                                      static_cast<UseKind>(kind));
  };
  return in_store(store, kCall, begin, c::Harmless::shortage);
}

terrace_error* terrace_release(terrace_store* store, uint64_t lease) {
  return in_store(store, TERRACE_CALL(release), [&](terrace_store& s) { s.offloader->end_lease(lease); });
}

terrace_error* terrace_parameter(terrace_store* store, uint32_t tensor, const void** parameter) {
  constexpr Names kCall = TERRACE_CALL(parameter);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(parameter, kCall, "parameter");
    *parameter = s.offloader->parameter(TensorId{tensor});
  });
}

terrace_error* terrace_gradient(terrace_store* store, uint32_t tensor, terrace_gradient_view* view) {
  constexpr Names kCall = TERRACE_CALL(gradient);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_result(view, kCall, "view");
    const GradientView gradient = s.offloader->gradient(TensorId{tensor});
    c::give(view, {.size = 0, .accumulate = gradient.accumulate ? 1u : 0u, .data = gradient.data});
  });
}

terrace_error* terrace_hand_over(terrace_store* store, uint32_t tensor, const void* gradient, uint32_t type,
                                 uint32_t flags) {
  constexpr Names kCall = TERRACE_CALL(hand_over);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(gradient, kCall, "gradient");
    c::require_enum(type, 3, kCall, "type");
    c::require_zero(flags, kCall, "flags");
    if (tensor >= s.space.tensor_count())
      c::misuse(kCall, "tensor " + std::to_string(tensor),
                "there are " + std::to_string(s.space.tensor_count()), "count tensors from 0");
    const TensorSpec& spec = s.space.tensor(TensorId{tensor});
    if (static_cast<DataType>(type) != spec.type)
      c::misuse(kCall, spec.name, "the gradient is of another type than the tensor",
                "hand it over in " + std::string(name_of(spec.type)));
    const uint64_t bytes = s.space.place(TensorId{tensor}).elements * bytes_of(spec.type);
    s.offloader->hand_over_gradient(TensorId{tensor},
                                    {static_cast<const std::byte*>(gradient), static_cast<size_t>(bytes)});
  });
}

terrace_error* terrace_abandon_step(terrace_store* store) {
  return in_store(store, TERRACE_CALL(abandon_step), [&](terrace_store& s) {
    s.offloader->abandon_step();
    s.open = c::Open::nothing;
  });
}

terrace_error* terrace_move_tensor(terrace_store* store, uint32_t tensor, void* address) {
  constexpr Names kCall = TERRACE_CALL(move_tensor);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(address, kCall, "address");
    c::require_rest(s, kCall);
    s.offloader->move_caller_tensor(TensorId{tensor}, static_cast<std::byte*>(address));
  });
}

terrace_error* terrace_begin_evaluation(terrace_store* store) {
  constexpr Names kCall = TERRACE_CALL(begin_evaluation);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_values(s, kCall);
    s.offloader->begin_evaluation();
    s.open = c::Open::evaluation;
  });
}

terrace_error* terrace_end_evaluation(terrace_store* store) {
  return in_store(store, TERRACE_CALL(end_evaluation), [&](terrace_store& s) {
    s.offloader->end_evaluation();
    s.open = c::Open::nothing;
  });
}
