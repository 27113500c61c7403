// terrace_run.h: the ranks that train together; and the place of a process among those of a launcher, for
// programs that can train in one process alone.
#include <terrace_run.h>

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/store.h>
#include <terrace/capi/structs.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/comm/identity/rank_identity.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/runtime/observe/run_reports.h>
#include <terrace/runtime/ranks/host_share.h>
#include <terrace/runtime/ranks/run_ranks.h>

namespace terrace::c {

// A program of C hears everything by its log.
class ProgramOfC final : public RankProgram {
 public:
  explicit ProgramOfC(const terrace_ranks_options& options)
      : ends_process_(options.ends_process != 0), log_(options.log, options.log_context) {}

  // Not the first rank: its errors have this before them.
  void speak_for(std::string ranks) { ranks_ = std::move(ranks); }
  Log& log() override { return log_; }
  void say(const Error& failure) override { log_.error(failure.in(Door::c)); }
  void say_as(const std::string& ranks, const Error& failure) override {
    const std::string& those = ranks.empty() ? ranks_ : ranks;
    const std::string text = failure.in(Door::c);
    log_.error(those.empty() ? text : fmt::format("[{}] {}", those, text));
  }
  void end_at_once() override {
    if (ends_process_) std::_Exit(1);
  }

 private:
  const bool ends_process_;
  CallbackLog log_;
  std::string ranks_;
};

}  // namespace terrace::c

using namespace terrace;  // NOLINT: the functions of C are in no namespace

namespace {

constexpr const char* kJoin = "cannot join the other ranks";
constexpr const char* kAct = "cannot go on with the other ranks";
constexpr uint64_t kMostBallotBytes = uint64_t{1} << 20;
constexpr uint32_t kDefaultTimeoutSeconds = 60;

Environment variables_with(const char* place) {
  Environment variables = environment_from(environ);
  if (place != nullptr) variables["TERRACE_MEET"] = place;
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

}  // namespace

struct terrace_ranks {
  // Joins the others.
  explicit terrace_ranks(const terrace_ranks_options& options)
      : forks(c::forks()),
        program(options),
        ranks(variables_with(options.place), program, given_rank(options)),
        seat(join(options)),
        launcher(ranks.are_several() ? name_of(ranks.identity().launcher) : ""),
        following(ranks.watch().follow({watch})) {}

  RankSeat join(const terrace_ranks_options& options) {
    constexpr CommunicatorChoice kChoices[] = {CommunicatorChoice::automatic, CommunicatorChoice::host,
                                               CommunicatorChoice::mpi};
    const uint32_t rank = ranks.identity().rank;
    if (rank != 0) program.speak_for(text_of_ranks({&rank, 1}));
    const uint32_t seconds = options.timeout_seconds != 0 ? options.timeout_seconds : kDefaultTimeoutSeconds;
    ranks.join({kChoices[options.transport], std::chrono::seconds(seconds)});
    return seat_of(rank, ranks.communicator() != nullptr ? ranks.communicator()->places()
                                                         : std::span<const RankPlace>());
  }

  const uint32_t forks;  // terrace::c::forks() of the process that joined
  c::ProgramOfC program;
  RunRanks ranks;
  const RankSeat seat;
  const std::string launcher;
  std::string where;
  uint64_t step = 0;  // as the others are told
  StepWatch watch;
  const RankWatch::Following following;  // the last member: it looks at the others
};

namespace {

// The failure of a call that a death is behind names the rank that has died.
[[noreturn]] void fail_with(const Error& death) {
  ErrorParts parts = death.parts();
  if (parts.advice.empty()) parts.advice = "see what that rank has written, then start all of them again";
  throw Error(ErrorKind::peer, std::move(parts));
}

template <typename Action>
terrace_error* in_ranks(terrace_ranks* ranks, Action action) noexcept {
  return c::answer([&] {
    c::require_pointer(ranks, kAct, "ranks");
    if (ranks->forks != c::forks())
      c::misuse(kAct, "ranks", "this process was forked after they joined", "use them where they joined");
    try {
      action(*ranks);
    } catch (const Error& failure) {
      if (const std::optional<Error> death = ranks->ranks.watch().death_behind(failure)) fail_with(*death);
      throw;
    }
  });
}

ErrorKind kind_of_c(uint32_t kind) {
  switch (kind) {
    case TERRACE_CONFIG:
      return ErrorKind::config;
    case TERRACE_CANCELLED:
      return ErrorKind::cancelled;
    case TERRACE_PEER:
      return ErrorKind::peer;
    default:
      return ErrorKind::io;
  }
}

}  // namespace

terrace_error* terrace_ranks_join(const terrace_ranks_options* options, terrace_ranks** ranks) {
  return c::answer([&] {
    c::require_pointer(ranks, kJoin, "ranks");
    const terrace_ranks_options given = c::taken(options, kJoin, "terrace_ranks_options");
    c::require_enum(given.transport, 3, kJoin,
                    Names{.c = "terrace_ranks_options.transport", .python = "transport"});
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
  return in_ranks(ranks, [&](terrace_ranks& r) {
    c::require_list(names, count, kAct, "names");
    c::require_list(values, count, kAct, "values");
    std::map<std::string, std::string> facts;
    for (uint32_t f = 0; f < count; ++f) {
      c::require_pointer(names[f], kAct, "names");
      c::require_pointer(values[f], kAct, "values");
      facts[names[f]] = values[f];
    }
    const WatchedWait wait(r.watch, word_of_ranks("what they agree on"));
    r.ranks.agree([&] { return facts; });
  });
}

terrace_error* terrace_ranks_ballot(terrace_ranks* ranks, const void* mine, uint64_t bytes, void* all) {
  return in_ranks(ranks, [&](terrace_ranks& r) {
    c::require_list(mine, bytes, kAct, "mine");
    c::require_list(all, bytes, kAct, "all");
    c::require_at_most(bytes, kMostBallotBytes, kAct, "bytes");
    const WatchedWait wait(r.watch, word_of_ranks("a ballot"));
    const std::vector<std::byte> votes =
        RankVotes(r.ranks.communicator()).of_all(std::span(static_cast<const std::byte*>(mine), bytes));
    if (!votes.empty()) std::memcpy(all, votes.data(), votes.size());
  });
}

terrace_error* terrace_ranks_step(terrace_ranks* ranks, uint64_t step, const char* doing) {
  return in_ranks(ranks, [&](terrace_ranks& r) {
    r.watch.set_activity(doing != nullptr ? doing : "");
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
  });
}

terrace_error* terrace_ranks_check(terrace_ranks* ranks) {
  return in_ranks(ranks, [](terrace_ranks& r) {
    if (const std::optional<Error> death = r.ranks.watch().death()) fail_with(*death);
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
    const int worst =
        r.ranks.end_with(Error(kind_of_c(kind), {failure, "", "", ""}), static_cast<int>(status));
    *exit_status = static_cast<uint32_t>(worst);
  });
}

void terrace_ranks_free(terrace_ranks* ranks) {
  if (ranks != nullptr && ranks->forks == c::forks()) delete ranks;
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
