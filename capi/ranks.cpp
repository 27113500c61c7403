// terrace_run.h: the ranks that train together; and the place of a process among those of a launcher, for
// programs that can train in one process alone.
#include <terrace/capi/ranks.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/store.h>
#include <terrace/capi/structs.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/comm/connections/run_secret.h>
#include <terrace/comm/identity/rank_identity.h>
#include <terrace/runtime/observe/run_reports.h>

namespace terrace::c {

void ProgramOfC::say(const Error& failure) {
  log_.error(failure.in(Door::c));
}

void ProgramOfC::say_as(const std::string& ranks, const Error& failure) {
  const std::string& those = ranks.empty() ? ranks_ : ranks;
  const std::string text = failure.in(Door::c);
  log_.error(those.empty() ? text : fmt::format("[{}] {}", those, text));
}

void ProgramOfC::look_at(const StepWatch& watch, bool is_of_store) {
  const MutexLock lock(mutex_);
  watch_ = &watch;
  has_store_ = is_of_store;
}

// Who waits within a call is told by that.
bool ProgramOfC::ends_process() const {
  if (ends_process_ == TERRACE_ENDS_NEVER || is_told_) return false;
  const MutexLock lock(mutex_);
  if (watch_ != nullptr && watch_->current()) return false;
  return ends_process_ == TERRACE_ENDS_ALWAYS || has_store_;
}

void ProgramOfC::end_at_once() {
  if (ends_process()) std::_Exit(1);
}

void ProgramOfC::another_has_failed(const Error& failure) {
  if (!ends_process()) return;
  say_as("", failure);
  std::_Exit(1);
}

}  // namespace terrace::c

using namespace terrace;  // NOLINT: the functions of C are in no namespace

namespace {

constexpr const char* kJoin = "cannot join the other ranks";
constexpr const char* kAct = "cannot go on with the other ranks";
constexpr uint64_t kMostBallotBytes = uint64_t{1} << 20;
constexpr uint32_t kDefaultTimeoutSeconds = 60;
constexpr uint32_t kDefaultWarningSeconds = 60;

constexpr std::array<std::string_view, 3> kOfRun{kSecretVariable, "TERRACE_RUN", "TORCHELASTIC_RUN_ID"};

// Some of the ranks of a run are no launcher's, but have the name of the run and its secret.
Environment variables_of(const terrace_ranks_options& options) {
  Environment variables = environment_from(environ);
  if (options.among != nullptr)
    std::erase_if(variables,
                  [](const auto& one) { return std::ranges::find(kOfRun, one.first) == kOfRun.end(); });
  if (options.place != nullptr) variables["TERRACE_MEET"] = options.place;
  return variables;
}

GivenRank given_rank(const terrace_ranks_options& options) {
  if (options.count == 0) {
    if (options.rank != 0)
      c::refuse(ErrorKind::config, kJoin, Names{.c = "terrace_ranks_options.rank", .python = "rank"},
                fmt::format("it is {}, and count is 0", options.rank), "give both, or neither");
    return {};
  }
  return {.rank = options.rank, .ranks = options.count};
}

[[noreturn]] void fail_with(const Error& death) {
  ErrorParts parts = death.parts();
  if (parts.advice.empty()) parts.advice = "see what that rank has written, then start all of them again";
  throw Error(ErrorKind::peer, std::move(parts));
}

}  // namespace

terrace_ranks::terrace_ranks(const terrace_ranks_options& options)
    : forks(c::forks()),
      gathers_by_nccl(options.transport == TERRACE_TRANSPORT_NCCL),
      program(options),
      ranks(variables_of(options), program, given_rank(options)),
      seat(join(options)),
      launcher(ranks.are_several() ? name_of(ranks.identity().launcher) : ""),
      patience_{sizeof(terrace_patience), kDefaultWarningSeconds, 0, 0} {
  follow();
  if (ranks.are_several() && ranks.is_first())
    waits_ = std::make_unique<MutualWaitThread>(ranks.watch(), *ranks.communicator());
}

RankSeat terrace_ranks::join(const terrace_ranks_options& options) {
  constexpr CommunicatorChoice kChoices[] = {CommunicatorChoice::automatic, CommunicatorChoice::host,
                                             CommunicatorChoice::mpi, CommunicatorChoice::nccl};
  const uint32_t rank = ranks.identity().rank;
  if (rank != 0) program.speak_for(text_of_ranks({&rank, 1}));
  const uint32_t seconds = options.timeout_seconds != 0 ? options.timeout_seconds : kDefaultTimeoutSeconds;
  ranks.join({kChoices[options.transport], std::chrono::seconds(seconds)});
  return seat_of(
      rank, ranks.communicator() != nullptr ? ranks.communicator()->places() : std::span<const RankPlace>());
}

void terrace_ranks::follow() {
  watchdog_.reset();
  program.look_at(*watch, has_store());
  following_.reset();
  following_.reset(new RankWatch::Following(
      ranks.watch().follow({.watch = *watch, .completed_steps = step == 0 ? 0 : step - 1})));
  if (!ranks.are_several()) return;
  const auto in_ns = [](uint64_t seconds) { return seconds * 1'000'000'000; };
  WatchdogOptions wanted{.abort_after_ns = in_ns(patience_.stall_abort_seconds),
                         .asked_by = "stall_abort_seconds",
                         .others = [this] { return ranks.watch().who_is_where(); }};
  wanted.warn_after_ns =
      patience_.stall_warning_seconds == 0 ? UINT64_MAX : in_ns(patience_.stall_warning_seconds);
  watchdog_ = std::make_unique<WatchdogThread>(*watch, wanted, program.log(), [this] { give_up(); });
}

void terrace_ranks::set_patience(const terrace_patience& patience) {
  patience_ = patience;
  follow();
}

// Whoever gives up a wait has then told the others why, which a failure of its own does not.
void terrace_ranks::end_patience() {
  watchdog_.reset();
}

// On the watchdog's thread.
void terrace_ranks::give_up() {
  const std::optional<uint64_t> wait = watch->current();
  if (!wait) return;  // it is over by now
  const std::string whom =
      watch->is_for_ranks(*wait) ? ranks.watch().who_is_waited_for() : watch->describe(*wait).value_or("");
  const std::string why = fmt::format("a wait of {} s is given up: {}", patience_.stall_abort_seconds, whom);
  leave(why);
  ranks.watch().give_up(why);
}

void terrace_ranks::require_no_store(const c::Subject& action) const {
  if (has_store())
    c::misuse(action, "ranks", "they have a store already", "destroy that one first, on all ranks");
}

void terrace_ranks::serve(StepWatch& of_store) {
  watch = &of_store;
  follow();
}

void terrace_ranks::serve_none() {
  watch = &own_watch;
  follow();
}

// The failure of a call that a death is behind names the rank that has died.
void terrace_ranks::throw_death_behind(const Error& failure) {
  if (failure.kind() == ErrorKind::peer) program.has_been_told();
  const std::optional<Error> death = ranks.watch().death_behind(failure);
  if (death) fail_with(*death);
}

void terrace_ranks::leave(const std::string& why) const {
  if (ranks.communicator() != nullptr) ranks.communicator()->leave(why);
}

namespace {

template <typename Action>
terrace_error* in_ranks(terrace_ranks* ranks, Action action) noexcept {
  return c::answer([&] {
    c::require_pointer(ranks, kAct, "ranks");
    if (ranks->forks != c::forks())
      c::misuse(kAct, "ranks", "this process was forked after they joined", "use them where they joined");
    try {
      action(*ranks);
    } catch (const Error& failure) {
      ranks->throw_death_behind(failure);
      throw;
    }
  });
}

class RanksClaim {
 public:
  explicit RanksClaim(terrace_ranks& ranks) : ranks_(ranks), has_(ranks.try_claim()) {}
  ~RanksClaim() {
    if (has_) ranks_.free_claim();
  }
  RanksClaim(const RanksClaim&) = delete;
  RanksClaim& operator=(const RanksClaim&) = delete;
  bool has() const { return has_; }

 private:
  terrace_ranks& ranks_;
  const bool has_;
};

// A call that all ranks make, on one thread at a time.
template <typename Action>
terrace_error* with_ranks(terrace_ranks* ranks, Action action) noexcept {
  return in_ranks(ranks, [&](terrace_ranks& r) {
    const RanksClaim claim(r);
    if (!claim.has())
      throw Error(ErrorKind::misuse,
                  {kAct, "ranks", "another call is under way, of them or of their store, on another thread",
                   "make one call at a time", ErrorCause::store_busy});
    action(r);
  });
}

}  // namespace

terrace_error* terrace_ranks_join(const terrace_ranks_options* options, terrace_ranks** ranks) {
  return c::answer([&] {
    c::require_pointer(ranks, kJoin, "ranks");
    const terrace_ranks_options given = c::taken(options, kJoin, "terrace_ranks_options");
    c::require_enum(given.transport, 4, kJoin,
                    Names{.c = "terrace_ranks_options.transport", .python = "transport"});
    c::require_enum(given.ends_process, 3, kJoin,
                    Names{.c = "terrace_ranks_options.ends_process", .python = "ends_process"});
    if (given.among != nullptr && (given.count == 0 || given.place == nullptr))
      c::refuse(ErrorKind::config, kJoin, "terrace_ranks_options.among",
                "some of the ranks of a run have no launcher that says rank, count and place",
                "give all three of them");
    *ranks = std::make_unique<terrace_ranks>(given).release();
  });
}

terrace_error* terrace_ranks_get(terrace_ranks* ranks, terrace_ranks_facts* facts) {
  return in_ranks(ranks, [&](terrace_ranks& r) {
    c::require_result(facts, kAct, "terrace_ranks_facts");
    terrace_ranks_facts known{};
    known.rank = r.ranks.identity().rank;
    known.count = r.ranks.identity().size;
    known.local_rank = r.seat.local_rank;
    known.local_count = r.seat.ranks_on_host;
    known.host = r.seat.host.c_str();
    known.launcher = r.launcher.c_str();
    c::give(facts, known);
  });
}

terrace_error* terrace_ranks_agree(terrace_ranks* ranks, const char* const* names, const char* const* values,
                                   uint32_t count) {
  return with_ranks(ranks, [&](terrace_ranks& r) {
    c::require_list(names, count, kAct, "names");
    c::require_list(values, count, kAct, "values");
    std::map<std::string, std::string> facts;
    for (uint32_t f = 0; f < count; ++f) {
      c::require_pointer(names[f], kAct, "names");
      c::require_pointer(values[f], kAct, "values");
      facts[names[f]] = values[f];
    }
    const WatchedWait wait(*r.watch, word_of_ranks("what they agree on"));
    r.ranks.agree([&] { return facts; });
  });
}

terrace_error* terrace_ranks_ballot(terrace_ranks* ranks, const void* mine, uint64_t bytes, void* all) {
  return with_ranks(ranks, [&](terrace_ranks& r) {
    c::require_list(mine, bytes, kAct, "mine");
    c::require_list(all, bytes, kAct, "all");
    c::require_at_most(bytes, kMostBallotBytes, kAct, "bytes");
    const WatchedWait wait(*r.watch, word_of_ranks("a ballot"));
    const std::vector<std::byte> votes =
        RankVotes(r.ranks.communicator()).of_all(std::span(static_cast<const std::byte*>(mine), bytes));
    if (!votes.empty()) std::memcpy(all, votes.data(), votes.size());
  });
}

terrace_error* terrace_ranks_step(terrace_ranks* ranks, uint64_t step, const char* doing) {
  return in_ranks(ranks, [&](terrace_ranks& r) {
    r.watch->set_activity(doing != nullptr ? doing : "");
    if (step == 0 || step == r.step) return;
    r.step = step;
    StepReport before;
    before.step = step - 1;
    r.ranks.watch().step_done(before);
  });
}

terrace_error* terrace_ranks_kept(terrace_ranks* ranks, const char* text) {
  return in_ranks(ranks, [&](terrace_ranks& r) {
    c::require_pointer(text, kAct, "text");
    r.ranks.watch().set_what_is_kept(text);
    if (*text != '\0') r.ranks.watch().own_state_kept();
  });
}

terrace_error* terrace_ranks_check(terrace_ranks* ranks) {
  return in_ranks(ranks, [](terrace_ranks& r) {
    if (const std::optional<Error> lost = r.ranks.watch().lost_rank()) fail_with(*lost);
  });
}

terrace_error* terrace_ranks_patience(terrace_ranks* ranks, const terrace_patience* patience) {
  return in_ranks(ranks, [&](terrace_ranks& r) {
    const terrace_patience given = c::taken(patience, kAct, "terrace_patience");
    c::require_zero(given.reserved, kAct, "terrace_patience.reserved");
    r.set_patience(given);
  });
}

terrace_error* terrace_ranks_where(terrace_ranks* ranks, const char** text) {
  return in_ranks(ranks, [&](terrace_ranks& r) {
    c::require_pointer(text, kAct, "text");
    r.where = r.ranks.watch().who_is_where().value_or("");
    *text = r.where.c_str();
  });
}

terrace_error* terrace_ranks_end(terrace_ranks* ranks, const char* failure, uint32_t kind, uint32_t status,
                                 uint32_t* exit_status) {
  return in_ranks(ranks, [&](terrace_ranks& r) {
    c::require_pointer(exit_status, kAct, "exit_status");
    *exit_status = status;
    if (failure == nullptr) return;
    r.end_patience();
    const int worst = r.ranks.end_with(Error(c::error_kind(kind, ErrorKind::io), {failure, "", "", ""}),
                                       static_cast<int>(status));
    *exit_status = static_cast<uint32_t>(worst);
  });
}

void terrace_ranks_free(terrace_ranks* ranks) {
  if (ranks == nullptr || ranks->forks != c::forks()) return;
  if (ranks->has_store()) {
    // What the store uses is rather kept than pulled away.
    ranks->program.log().error("terrace_ranks_free was called before the store of these ranks was destroyed");
    return;
  }
  delete ranks;
}

terrace_error* terrace_launched(uint32_t* rank, uint32_t* ranks, const char** launcher) {
  return c::answer([&] {
    c::require_pointer(rank, "terrace_launched", "rank");
    c::require_pointer(ranks, "terrace_launched", "ranks");
    c::require_pointer(launcher, "terrace_launched", "launcher");
    const RankIdentity identity = identify_rank(environment_from(environ));
    *rank = identity.rank;
    *ranks = identity.size;
    // Names of launchers are literals, which end with a zero.
    *launcher = identity.alone() ? "" : name_of(identity.launcher).data();
  });
}
