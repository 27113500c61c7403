// Updates, and when they run.
#include <fmt/format.h>

#include <algorithm>

#include <terrace/capi/errors.h>
#include <terrace/capi/optimizer.h>
#include <terrace/capi/store.h>
#include <terrace/capi/structs.h>
#include <terrace_run.h>

using namespace terrace;  // NOLINT: the functions of C are in no namespace
using c::in_store;

namespace {

// Where ranks cannot update together the step is over all the same.
UpdateResult update(terrace_store& store, const UpdateSettings& settings) {
  const auto note_end = [&store] {
    if (store.offloader->nothing_is_open()) store.open = c::Open::nothing;
  };
  try {
    const UpdateResult done = store.offloader->update(settings);
    note_end();
    return done;
  } catch (...) {
    note_end();
    throw;
  }
}

}  // namespace

terrace_error* terrace_update(terrace_store* store, const terrace_update_settings* settings,
                              terrace_update_result* result) {
  constexpr Names kCall = TERRACE_CALL(update);
  return in_store(store, kCall, [&](terrace_store& s) {
    const c::OwnedSettings owned = c::read_settings(settings, s.skips_unused, kCall);
    if (result != nullptr) c::require_result(result, kCall, "result");
    const UpdateResult done = update(s, owned.settings);
    s.see_commits();
    if (result == nullptr) return;
    terrace_update_result given{};
    given.applied = done.applied ? 1 : 0;
    given.gradient_norm = done.gradient_norm;
    given.partly_applied = done.partly_applied ? 1 : 0;
    c::give(result, given);
  });
}

static_assert(TERRACE_SQUARES_LIMBS == ExactSum::kLimbs);

terrace_error* terrace_gradient_squares(terrace_store* store, uint64_t* limbs, uint32_t count,
                                        double* not_finite) {
  constexpr Names kCall = TERRACE_CALL(gradient_squares);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(limbs, kCall, "limbs");
    c::require_pointer(not_finite, kCall, "not_finite");
    if (count != ExactSum::kLimbs)
      c::misuse(kCall, "count", fmt::format("it is {}, and a sum has {} limbs", count, ExactSum::kLimbs),
                "give TERRACE_SQUARES_LIMBS");
    const ExactSum squares = s.offloader->gradient_squares();
    std::ranges::copy(squares.limbs(), limbs);
    *not_finite = squares.not_finite();
  });
}

terrace_error* terrace_announce_update(terrace_store* store, const terrace_update_settings* settings) {
  constexpr Names kCall = TERRACE_CALL(announce_update);
  return in_store(store, kCall, [&](terrace_store& s) {
    const c::OwnedSettings owned = c::read_settings(settings, s.skips_unused, kCall);
    s.offloader->announce_update(owned.settings);
  });
}

terrace_error* terrace_finish_update(terrace_store* store) {
  return in_store(store, TERRACE_CALL(finish_update),
                  [&](terrace_store& s) { s.offloader->finish_update(); });
}

terrace_error* terrace_update_pending(terrace_store* store, uint32_t* is_pending) {
  constexpr Names kCall = TERRACE_CALL(update_pending);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(is_pending, kCall, "is_pending");
    *is_pending = s.offloader->update_pending() ? 1 : 0;
  });
}

terrace_error* terrace_set_update_when(terrace_store* store, uint32_t when) {
  constexpr Names kCall = TERRACE_CALL_AS(set_update_when, "Store.update_when");
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_enum(when, 3, kCall, "when");
    c::require_rest(s, kCall);
    s.offloader->set_update_mode(static_cast<UpdateMode>(when));
  });
}

terrace_error* terrace_get_update_when(terrace_store* store, uint32_t* when) {
  constexpr Names kCall = TERRACE_CALL_AS(get_update_when, "Store.update_when");
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(when, kCall, "when");
    *when = static_cast<uint32_t>(s.offloader->update_mode());
  });
}
