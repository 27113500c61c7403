#include "launch/host_ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <terrace/base/error.h>

#include "command_line.h"
#include "launch/mpirun_command.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

// A connection that ends so soon after the first one that mpirun cannot have killed the rank yet: it asks the
// others to end a second after one has failed, and kills them another second later.
constexpr milliseconds kDiesByItself(1500);
// mpirun asks the others to end a second after one has died. One that has ended just before they are asked
// has lost its daemon, as mpirun has, and ends because of that.
constexpr milliseconds kEndsWithItsDaemon(500);
// By then mpirun has ended, unless it waits for a host that is cut off.
constexpr std::chrono::seconds kForMpirun(5);
// The ends of connections to other hosts arrive a little later than that of mpirun.
constexpr milliseconds kForLastWords(1000);

uint32_t slots_of(const std::vector<HostSlots>& hosts) {
  size_t count = 0;
  for (const HostSlots& host : hosts) count += host.slots.size();
  return static_cast<uint32_t>(count);
}

}  // namespace

HostRanks::HostRanks(const HostRanksOptions& options)
    : options_(options),
      run_(new_run_name()),
      secret_(secret_for_ranks()),
      listener_(RendezvousPlace{}),
      handshake_(listener_,
                 {run_number(run_), slots_of(options.hosts), RankChannel::launcher, RunSecret(secret_)}),
      ranks_(slots_of(options.hosts)) {
  const pid_t launcher = getpid();
  mpirun_ = fork();
  if (mpirun_ == 0) become_mpirun(launcher);
  if (mpirun_ < 0)
    throw Error(ErrorKind::io, {"cannot start the ranks", "mpirun", system_reason(errno),
                                "raise the limits of this user (ulimit -u)"});
}

HostRanks::~HostRanks() {
  if (is_over_) return;
  kill(mpirun_, SIGKILL);
  waitpid(mpirun_, nullptr, 0);
}

void HostRanks::become_mpirun(pid_t launcher) const {
  settle_in_child(launcher);
  const std::vector<std::string> variables = {
      fmt::format("{}={}", kLauncherPlaces, launcher_places(listener_.port())),
      fmt::format("{}={}", kRunName, run_),
      fmt::format("{}={}", kNewGradientGroup, options_.new_gradient_group),
      kSecretVariable};  // its value is mpirun's, since everybody sees a command line
  const std::vector<std::string> command =
      watched_mpirun_command(options_.hosts, std::filesystem::read_symlink("/proc/self/exe"),
                             options_.arguments, options_.log_folder, variables);
  signals_.restore();
  setenv(kSecretVariable, secret_.c_str(), 1);
  execvp("mpirun", pointers_to(command).data());
  _exit(kFailed);
}

int HostRanks::wait() {
  while (!is_over_) {
    poll_once();
    take_signals();
    take_end();
    take_those_that_came();
    for (uint32_t r = 0; r < ranks_.size(); ++r) take_words(r);
    end_mpirun_that_stays();
  }
  hear_last_words();
  return status_;
}

bool HostRanks::may_have_lost() const {
  return status_ != 0 && (has_lost() || !std::ranges::all_of(ranks_, &Rank::is_over));
}

void HostRanks::poll_once() {
  std::vector<pollfd> watched{{signals_.fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    if (rank.link) watched.push_back({rank.link->fd_to_hear(), POLLIN, 0});
  }
  handshake_.add_to(watched);
  poll(watched.data(), watched.size(), ms_to_next_deadline());
}

int HostRanks::ms_to_next_deadline() const {
  constexpr int64_t kMost = 1000;  // then the patience with strangers is looked at
  if (!end_at_) return static_cast<int>(kMost);
  const int64_t ms = std::chrono::ceil<milliseconds>(*end_at_ - Steady::now()).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, kMost));
}

// mpirun hands SIGUSR1 on at once, and ranks stop by it after the step in progress, or at the second one at
// once. Other signals it answers by killing them.
void HostRanks::take_signals() {
  constexpr uint32_t kWishes = 2;
  while (const std::optional<int> signal = signals_.take()) {
    const bool is_heard = std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.link.has_value(); });
    kill(mpirun_, is_heard && signals_handed_on_ < kWishes ? SIGUSR1
                  : *signal == SIGUSR1                     ? SIGTERM
                                                           : *signal);
    ++signals_handed_on_;
  }
}

void HostRanks::take_those_that_came() {
  for (RankHandshake::Guest& guest : handshake_.take_in_those_that_came())
    ranks_[guest.hello.rank].link.emplace(std::move(guest.socket));
}

void HostRanks::take_words(uint32_t rank) {
  Rank& one = ranks_[rank];
  if (!one.link || one.link->has_ended()) return;
  while (const std::optional<LauncherWord> word = one.link->hear()) {
    if (word->kind == LauncherWord::Kind::ended) one.says_end = true;
    if (word->kind == LauncherWord::Kind::asked) is_asked(rank);
    if (word->kind == LauncherWord::Kind::kept) has_kept_ = true;
    if (word->rank >= ranks_.size()) continue;
    Rank& other = ranks_[word->rank];
    const bool has_stalled = word->kind == LauncherWord::Kind::stalled && !other.says_end;
    if (!has_stalled && word->kind != LauncherWord::Kind::lost) continue;
    other.is_named = true;
    other.has_died |= has_stalled;
    lost_one();
  }
  if (one.link->has_ended()) has_ended(rank);
}

// A rank that has failed says that it ends before mpirun asks the others to.
void HostRanks::is_asked(uint32_t rank) {
  ranks_[rank].is_asked = true;
  if (was_stopped() || mpirun_ends_all_) return;
  const Moment late = Steady::now() - kEndsWithItsDaemon;
  const auto is_why = [&](const Rank& one) {
    return one.says_end || (one.has_died && (!one.ended_at || *one.ended_at < late));
  };
  if (std::ranges::any_of(ranks_, is_why)) return;
  mpirun_ends_all_ = true;
  for (Rank& one : ranks_) one.has_died = false;
}

bool HostRanks::is_unheard() const {
  return std::ranges::none_of(ranks_, [](const Rank& rank) { return rank.link.has_value(); });
}

// What has ended late is killed by mpirun, which ends all ranks when one has failed, and what falls silent
// may be as alive as before.
void HostRanks::has_ended(uint32_t rank) {
  Rank& one = ranks_[rank];
  if (one.link->has_fallen_silent()) return;
  const Moment now = Steady::now();
  one.ended_at = now;
  if (!first_ended_at_) first_ended_at_ = now;
  const bool mpirun_ends_it = mpirun_died_ || mpirun_ends_all_ || kills_mpirun_;
  const bool is_ended_by_others = mpirun_ends_it || was_stopped() || now > *first_ended_at_ + kDiesByItself;
  if (one.says_end || one.is_asked || is_ended_by_others) return;
  one.has_died = one.is_wordless = true;
  lost_one();
  for (const Rank& other : ranks_) {
    if (other.link && !other.is_over())
      other.link->tell({.kind = LauncherWord::Kind::death, .rank = rank, .signal = 0});
  }
}

void HostRanks::lost_one() {
  if (std::exchange(has_lost_rank_, true)) return;
  end_at_ = Steady::now() + kForMpirun;
}

void HostRanks::take_end() {
  int status = 0;
  if (waitpid(mpirun_, &status, WNOHANG) != mpirun_) return;
  is_over_ = true;
  end_at_.reset();
  mpirun_died_ = WIFSIGNALED(status) && !kills_mpirun_ && !was_stopped();
  // A status beyond this program's own is mpirun's, or that of a shell for a signal.
  mpirun_status_ = WIFSIGNALED(status) ? static_cast<int>(kFailed) : WEXITSTATUS(status);
  status_ = mpirun_status_ > static_cast<int>(kUsage) ? static_cast<int>(kFailed) : mpirun_status_;
}

void HostRanks::hear_last_words() {
  const Deadline deadline(kForLastWords);
  const auto is_heard = [](const Rank& rank) { return !rank.link || rank.link->has_ended(); };
  do {
    take_those_that_came();
    for (uint32_t r = 0; r < ranks_.size(); ++r) take_words(r);
    if (std::ranges::all_of(ranks_, is_heard)) break;
    poll_once();
  } while (!deadline.has_passed());
  // One that never came here cannot have said that it ends.
  for (Rank& rank : ranks_) rank.has_died = rank.has_died || (rank.is_named && !rank.link);
  settle_deaths();
  // So it is where a rank dies before it comes: mpirun's status is then that of a shell.
  constexpr int kNoSignal = 128;
  says_signal_ = mpirun_status_ > kNoSignal && mpirun_status_ <= kNoSignal + SIGRTMAX && !was_stopped() &&
                 std::ranges::none_of(ranks_, &Rank::says_end);
}

// MPI ends a rank without a word when a connection of its own to a dead one ends. So of those that have ended
// together the dead are those that others have named, or else the first one. Where several had died at once,
// the next attempt loses the others again.
void HostRanks::settle_deaths() {
  const auto is_known = [](const Rank& rank) { return rank.is_wordless && rank.is_named; };
  const bool are_named = std::ranges::any_of(ranks_, is_known);
  const Rank* first = nullptr;
  for (const Rank& rank : ranks_) {
    if (rank.is_wordless && (first == nullptr || rank.ended_at < first->ended_at)) first = &rank;
  }
  for (Rank& rank : ranks_) {
    if (rank.is_wordless) rank.has_died = rank.has_died && (are_named ? rank.is_named : &rank == first);
  }
}

void HostRanks::end_mpirun_that_stays() {
  if (!end_at_ || Steady::now() < *end_at_) return;
  kill(mpirun_, SIGKILL);
  kills_mpirun_ = true;
  end_at_.reset();
}

}  // namespace terrace
