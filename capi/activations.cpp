// Activations that the program saves between forward and backward.
#include <span>

#include <terrace/capi/errors.h>
#include <terrace/capi/store.h>
#include <terrace/capi/structs.h>
#include <terrace_run.h>

using namespace terrace;  // NOLINT: the functions of C are in no namespace
using c::in_store;

static_assert(sizeof(SavedActivation) == sizeof(uint64_t));

namespace {

SavedActivations& activations_of(terrace_store& store, const Names& call) {
  SavedActivations* const saved = store.offloader->saved_activations();
  if (saved == nullptr)
    c::refuse(ErrorKind::config, call, "store", "it saves no activations",
              "create it with " + Option::saved_activations);
  return *saved;
}

}  // namespace

terrace_error* terrace_start_save(terrace_store* store, const void* values, uint64_t bytes, uint64_t* saved) {
  constexpr Names kCall = TERRACE_CALL(start_save);
  const auto save = [&](terrace_store& s) {
    SavedActivations& activations = activations_of(s, kCall);
    c::require_pointer(values, kCall, "values");
    c::require_pointer(saved, kCall, "saved");
    if (bytes == 0) c::misuse(kCall, "bytes", "there are none", "save one at least");
    *saved = static_cast<uint64_t>(activations.start_save(static_cast<const std::byte*>(values), bytes));
  };
  return in_store(store, kCall, save, c::Harmless::all);
}

terrace_error* terrace_finish_save(terrace_store* store, uint64_t saved) {
  constexpr Names kCall = TERRACE_CALL(finish_save);
  const auto finish = [&](terrace_store& s) { activations_of(s, kCall).finish_save(SavedActivation{saved}); };
  return in_store(store, kCall, finish, c::Harmless::all);
}

terrace_error* terrace_start_load(terrace_store* store, uint64_t saved, void* values, uint32_t* has_begun) {
  constexpr Names kCall = TERRACE_CALL(start_load);
  const auto load = [&](terrace_store& s) {
    SavedActivations& activations = activations_of(s, kCall);
    c::require_pointer(values, kCall, "values");
    const bool begun = activations.start_load(
        SavedActivation{saved}, static_cast<std::byte*>(values),
        has_begun != nullptr ? SavedActivations::Room::must_be_there : SavedActivations::Room::is_made);
    if (has_begun != nullptr) *has_begun = begun;
  };
  return in_store(store, kCall, load, c::Harmless::all);
}

terrace_error* terrace_finish_load(terrace_store* store, uint64_t saved) {
  constexpr Names kCall = TERRACE_CALL(finish_load);
  const auto finish = [&](terrace_store& s) { activations_of(s, kCall).finish_load(SavedActivation{saved}); };
  return in_store(store, kCall, finish, c::Harmless::all);
}

terrace_error* terrace_drop_saved(terrace_store* store, const uint64_t* saved, uint32_t count) {
  constexpr Names kCall = TERRACE_CALL(drop_saved);
  const auto drop = [&](terrace_store& s) {
    SavedActivations& activations = activations_of(s, kCall);
    c::require_list(saved, count, kCall, "saved");
    for (uint32_t i = 0; i < count; ++i) activations.drop(SavedActivation{saved[i]});
  };
  return in_store(store, kCall, drop, c::Harmless::all, c::AfterFailure::answer);
}

terrace_error* terrace_saved_use_of(terrace_store* store, terrace_saved_use* use) {
  constexpr Names kCall = TERRACE_CALL_AS(saved_use_of, "Store.saved_activations");
  const auto tell = [&](terrace_store& s) {
    c::require_result(use, kCall, "use");
    terrace_saved_use given{};
    if (SavedActivations* const saved = s.offloader->saved_activations()) {
      const SavedUse of = saved->use();
      given.saved_count = of.count;
      given.host_bytes = of.host_bytes;
      given.host_peak_bytes = of.host_peak_bytes;
      given.host_held_bytes = of.host_held_bytes;
      given.host_most_bytes = of.host_most_bytes;
      given.nvme_bytes = of.nvme_bytes;
      given.nvme_peak_bytes = of.nvme_peak_bytes;
      given.file_bytes = of.file_bytes;
      const SavedStep step = saved->step();
      given.step_wanted_bytes = step.wanted_bytes;
      given.step_host_bytes = step.host_bytes;
      given.step_nvme_bytes = step.nvme_bytes;
      given.step_d2h_bytes = step.d2h_bytes;
      given.step_h2d_bytes = step.h2d_bytes;
      given.step_read_bytes = step.read_bytes;
      given.step_write_bytes = step.write_bytes;
    }
    c::give(use, given);
  };
  return in_store(store, kCall, tell, c::Harmless::all, c::AfterFailure::answer);
}
