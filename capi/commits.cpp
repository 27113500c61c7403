// Commits and the host budget.
#include <cstring>
#include <string>

#include <terrace/capi/commit_text.h>
#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/store.h>

using namespace terrace;  // NOLINT: the functions of C are in no namespace
using c::in_store;

terrace_error* terrace_begin_commit(terrace_store* store, const char* text, uint32_t retain) {
  constexpr Names kCall = TERRACE_CALL(begin_commit);
  const auto begin = [&](terrace_store& s) {
    c::require_pointer(text, kCall, "text");
    c::require_at_most(std::strlen(text), c::kMostCommitText, kCall, "the length of the text");
    c::require_values(s, kCall);
    if (retain != 0 && s.retained_commits == 0)
      c::misuse(kCall, "retain", "no room was planned for retained commits",
                "set " + Option::retained_commits);
    const c::CommitText whole{s.space.chunk_elements(), s.tensors, s.commit_number++, text};
    s.offloader->commits().begin(c::write_commit_text(whole), retain != 0);
    s.see_commits();
  };
  return in_store(store, kCall, begin, c::Harmless::all);
}

terrace_error* terrace_finish_commit(terrace_store* store, uint64_t* number) {
  const auto finish = [&](terrace_store& s) {
    const uint64_t last = s.offloader->commits().finish();
    s.see_commits();
    if (number != nullptr) *number = last;
  };
  return in_store(store, TERRACE_CALL(finish_commit), finish, c::Harmless::all);
}

terrace_error* terrace_commit_in_progress(terrace_store* store, uint32_t* in_progress) {
  constexpr Names kCall = TERRACE_CALL(commit_in_progress);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(in_progress, kCall, "in_progress");
    *in_progress = s.offloader->commits().in_progress() ? 1 : 0;
    s.see_commits();
  });
}

terrace_error* terrace_last_commit(terrace_store* store, uint64_t* number) {
  constexpr Names kCall = TERRACE_CALL(last_commit);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(number, kCall, "number");
    *number = s.offloader->commits().last();
    s.see_commits();
  });
}

terrace_error* terrace_taken_up_text(terrace_store* store, const char** text) {
  constexpr Names kCall = TERRACE_CALL(taken_up_text);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(text, kCall, "text");
    *text = s.taken_up_text.c_str();
  });
}

terrace_error* terrace_why_no_commits(terrace_store* store, const char** reason) {
  constexpr Names kCall = TERRACE_CALL(why_no_commits);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(reason, kCall, "reason");
    *reason = s.offloader->commits().why_not_kept().c_str();
  });
}

terrace_error* terrace_keep_tier(terrace_store* store, uint32_t keep) {
  return in_store(store, TERRACE_CALL(keep_tier), [&](terrace_store& s) {
    s.keeps_tier = keep != 0;
    s.offloader->commits().keep_tier(s.keeps_tier);
  });
}

terrace_error* terrace_host_budget(terrace_store* store, uint64_t* bytes, uint64_t* least_bytes) {
  constexpr Names kCall = TERRACE_CALL(host_budget);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(bytes, kCall, "bytes");
    c::require_pointer(least_bytes, kCall, "least_bytes");
    *bytes = s.offloader->budget().in_force();
    *least_bytes = s.offloader->budget().least();
  });
}

terrace_error* terrace_set_host_budget(terrace_store* store, uint64_t bytes) {
  constexpr Names kCall = TERRACE_CALL(set_host_budget);
  return in_store(
      store, kCall,
      [&](terrace_store& s) {
        c::require_values(s, kCall);
        s.offloader->budget().set(bytes);
      },
      c::Harmless::capacity);
}
