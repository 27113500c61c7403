#include <terrace/capi/store.h>

#include <pthread.h>

#include <utility>

#include <terrace/capi/commit_text.h>
#include <terrace/capi/found_commits.h>
#include <terrace/capi/ranks.h>
#include <terrace/capi/run.h>
#include <terrace/capi/store_of_ranks.h>
#include <terrace/capi/structs.h>

namespace terrace::c {

namespace {

std::atomic<uint32_t> fork_count = 0;

int watch_forks() {
  return pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
}

}  // namespace

uint32_t forks() {
  static const int failure = watch_forks();
  if (failure != 0)
    refuse(ErrorKind::capacity, "cannot create a store", "this process", system_reason(failure),
           "end what else takes memory");
  return fork_count.load(std::memory_order_relaxed);
}

namespace {

bool try_claim_ranks(terrace_store& store) {
  if (store.ranks != nullptr && !store.ranks->try_claim()) return false;
  if (store.model_ranks == nullptr || store.model_ranks->try_claim()) return true;
  if (store.ranks != nullptr) store.ranks->free_claim();
  return false;
}

void free_claims(terrace_store& store) {
  for (terrace_ranks* const ranks : store.all_ranks())
    if (ranks != nullptr) ranks->free_claim();
  store.is_busy.store(false, std::memory_order_release);
}

}  // namespace

terrace_error* enter(terrace_store* store, const Names& call, AfterFailure after) noexcept {
  terrace_error* refused = answer([&] {
    if (store == nullptr)
      throw Error(ErrorKind::misuse, {call, "store", "it is NULL", "give its address", ErrorCause::no_store});
    if (store->forks != fork_count.load(std::memory_order_relaxed))
      misuse(call, "store", "this process was forked after the store was created",
             "end it or call exec(), and create stores in the process that uses them");
    if (store->is_busy.exchange(true, std::memory_order_acquire))
      throw Error(ErrorKind::misuse,
                  {call, "store", "another call is under way, on another thread or around this one",
                   "make one call at a time, and none from a callback", ErrorCause::store_busy});
    if (try_claim_ranks(*store)) return;
    store->is_busy.store(false, std::memory_order_release);
    throw Error(ErrorKind::misuse, {call, "store", "a call of its ranks is under way, on another thread",
                                    "make one call at a time", ErrorCause::store_busy});
  });
  if (refused != nullptr || store->failure == nullptr || after == AfterFailure::answer) return refused;
  refused = copy_error(*store->failure);
  free_claims(*store);
  return refused;
}

void throw_death_behind(const Error& failure, const terrace_store& store) {
  for (terrace_ranks* const ranks : store.all_ranks())
    if (ranks != nullptr) ranks->throw_death_behind(failure);
}

namespace {

// The others wait for what this rank does not do any more.
void tell_others(const terrace_ranks& ranks, const terrace_error& failure) noexcept {
  try {
    ranks.leave(failure.text);
  } catch (...) {
    // Without memory for the words the end of this process tells them.
  }
}

}  // namespace

void leave(terrace_store& store, const terrace_error* failure, Harmless harmless) noexcept {
  const uint32_t kind = terrace_error_kind_of(failure);
  const bool stays =
      failure != nullptr && kind != TERRACE_CONFIG && kind != TERRACE_MISUSE && harmless != Harmless::all &&
      !(kind == TERRACE_CAPACITY &&
        (harmless == Harmless::capacity || (harmless == Harmless::shortage && failure->least_bytes > 0)));
  if (stays && store.failure == nullptr) {
    store.failure.reset(copy_error(*failure));
    for (const terrace_ranks* const ranks : store.all_ranks())
      if (ranks != nullptr) tell_others(*ranks, *failure);
  }
  free_claims(store);
}

void require_rest(const terrace_store& store, const Subject& action) {
  if (store.open != Open::nothing)
    misuse(action, "store", store.open == Open::step ? "a step is open" : "an evaluation is open",
           store.open == Open::step ? "update or abandon the step first" : "end the evaluation first");
}

void require_values(const terrace_store& store, const Subject& action) {
  require_rest(store, action);
  if (!store.is_filled)
    misuse(action, "store", "it has no values",
           Wording("fill it first (") + TERRACE_CALL(fill_arrays) + ", " + TERRACE_CALL(fill_files) + ", " +
               TERRACE_CALL(fill_with) + ")");
}

}  // namespace terrace::c

using namespace terrace;  // NOLINT: the functions of C are in no namespace

namespace {

// Of a store over ranks the budget is the least of all.
terrace_device device_of(const c::Request& request) {
  terrace_device described = *request.device;
  described.budget_bytes = request.options.device_budget_bytes;
  return described;
}

}  // namespace

terrace_store::terrace_store(const c::Request& request)
    : forks(c::forks()),
      log(request.log, request.log_context),
      space(request.tensors, request.chunk_elements),
      workers(request.threads),
      device(c::make_device(device_of(request), log)),
      is_cuda(request.device->is_cuda),
      ordinal(request.device->ordinal),
      skips_unused(request.options.unused_gradients == UnusedGradients::skip),
      are_words(request.are_words),
      retained_commits(request.options.retained_commits),
      ranks(request.ranks),
      model_ranks(request.model_ranks),
      nccl(request.nccl),
      tensors(c::hash_of_streams(space)),
      commit_number(request.commit_number),
      passed(request.passed, log) {
  try {
    offloader =
        std::make_unique<Offloader>(space, request.options, request.trace, *device.device, workers, log);
  } catch (const ShortageError& shortage) {
    if (request.set) throw_shortage_beside(shortage);
    throw;
  }
  offloader->set_update_mode(request.update_mode);
  is_filled = request.options.tier_start == TierStart::resume;
  taken_up_text = c::read_commit_text(offloader->commits().taken_up_info()).text;
  if (request.set) go_on_from(*request.set);
  passed.begin(offloader->commits().are_kept());
  for (terrace_ranks* const served : all_ranks())
    if (served != nullptr) served->serve(offloader->watch());
}

// What another number of ranks has committed, or a store whose records have another layout.
void terrace_store::go_on_from(const StateSet& set) {
  constexpr const char* kGoOn = "cannot go on from the state of another run";
  const std::string where = set.shards.front().front().string();
  if (!offloader->commits().are_kept())
    c::refuse(ErrorKind::config, kGoOn, where, offloader->commits().why_not_kept(),
              "place the state as the run did that is to go on, or go on from a checkpoint");
  const auto require = [&](const std::string& info) {
    if (c::read_commit_text(info).tensors == tensors) return;
    c::refuse(ErrorKind::config, kGoOn, where,
              "its tensors are others, or lie otherwise: names, shapes, types, order or what is trained",
              "describe the tensors of the run that made it, or load a checkpoint");
  };
  taken_up_text = c::read_commit_text(load_state_set(set, require, *offloader, log)).text;
  is_filled = true;
}

void terrace_store::see_commits() noexcept {
  if (!passed.are_left()) return;
  const Commits& commits = offloader->commits();
  if (commits.last() > 0 && !commits.earlier_stays()) passed.commit_kept();
}

// A run whose own state does not stay leaves nothing of what it went on from, either.
terrace_store::~terrace_store() {
  if (passed.are_left() && !keeps_tier && is_filled) {
    passed.commit_kept();
  } else if (!offloader->commits().in_progress()) {
    see_commits();
  }
  offloader->end_with_ranks();
  for (terrace_ranks* const served : all_ranks())
    if (served != nullptr) served->serve_none();
}

terrace_error* terrace_create(const terrace_device* device, const terrace_tensor* tensors,
                              uint32_t tensor_count, const terrace_options* options, const terrace_use* uses,
                              uint32_t use_count, terrace_store** store) {
  return c::answer([&] {
    constexpr std::string_view kAction = "cannot create a store";
    c::require_pointer(store, kAction, "store");
    *store = nullptr;
    const c::RequestArguments arguments{device, tensors, tensor_count, options, uses, use_count};
    if (terrace_ranks* const ranks = c::ranks_of(arguments, kAction)) {
      *store = c::create_together(*ranks, arguments, kAction).release();
      return;
    }
    c::Request request = c::read_request(arguments, kAction);
    c::settle_start(request);
    c::settle_chunk_elements(request);
    *store = std::make_unique<terrace_store>(request).release();
  });
}

void terrace_destroy(terrace_store* store) {
  if (store == nullptr || store->forks != c::forks()) return;
  if (store->is_busy.exchange(true, std::memory_order_acquire)) {
    // Another thread is inside: what it uses is rather kept than pulled away.
    store->log.error("terrace_destroy was called during another call of the store, which stays");
    return;
  }
  if (store->run != nullptr) store->run->leave_store();
  delete store;
}

terrace_error* terrace_plan_of(terrace_store* store, terrace_plan_result* result) {
  return c::in_store(store, TERRACE_CALL_AS(plan_of, "Store.plan"), [&](terrace_store& s) {
    c::require_result(result, TERRACE_CALL_AS(plan_of, "Store.plan"), "result");
    c::give(result, c::result_of(s.offloader->plan(), s.space));
  });
}
