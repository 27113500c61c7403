#include "launch/local_ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include <terrace/base/error.h>

#include "command_line.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

// Ranks that learn of a death end within two seconds.
constexpr std::chrono::seconds kForTheOthers(5);
// Of a shell's status, and so of this program where the user has ended the ranks at once.
constexpr int kEndedBySignal = 128;
// A rank that refuses says why; the others are about to refuse the same.
constexpr std::chrono::seconds kForARefusal(2);

Error cannot_start(const std::string& what, int error) {
  return Error(ErrorKind::io,
               {"cannot start the ranks", what, system_reason(error),
                "start fewer ranks, or raise the number of processes of this user (`ulimit -u`)"});
}

bool is_of_a_launcher(std::string_view variable) {
  return variable.starts_with("TERRACE_RANK") || variable.starts_with("TERRACE_LOCAL_RANK") ||
         variable.starts_with("TERRACE_MEET=") || variable.starts_with("TERRACE_RUN=") ||
         variable.starts_with("TERRACE_SECRET=");
}

}  // namespace

LocalRanks::Folder::Folder() {
  std::string name =
      std::filesystem::absolute(std::filesystem::temp_directory_path() / "terrace-launch-XXXXXX");
  if (mkdtemp(name.data()) == nullptr)
    throw Error(ErrorKind::io, {"cannot make a folder in which the ranks meet", name, system_reason(errno),
                                "set TMPDIR to a folder that can be written"});
  path = name;
}

LocalRanks::Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

LocalRanks::LocalRanks(const LocalRanksOptions& options, Console& console)
    : options_(options),
      console_(console),
      output_(options.log_folder, options.ranks, options.appends_logs),
      ranks_(options.ranks) {
  try {
    for (uint32_t rank = 0; rank < options.ranks; ++rank) start(rank);
  } catch (...) {
    for (const Rank& rank : ranks_) {
      if (rank.process > 0) kill(rank.process, SIGKILL);
    }
    while (waitpid(-1, nullptr, 0) > 0) {
    }
    throw;
  }
  output_.close_inputs();
}

LocalRanks::~LocalRanks() {
  for (const Rank& rank : ranks_) {
    if (rank.is_over) continue;
    kill(rank.process, SIGKILL);
    waitpid(rank.process, nullptr, 0);
  }
}

std::vector<std::string> LocalRanks::variables_of(uint32_t rank, int link) const {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!is_of_a_launcher(*variable)) variables.emplace_back(*variable);
  }
  for (const char* const name : {"TERRACE_RANK", "TERRACE_LOCAL_RANK"})
    variables.push_back(fmt::format("{}={}", name, rank));
  for (const char* const name : {"TERRACE_RANKS", "TERRACE_LOCAL_RANKS"})
    variables.push_back(fmt::format("{}={}", name, options_.ranks));
  variables.push_back("TERRACE_MEET=" + (folder_.path / "meet").string());
  variables.push_back(fmt::format("{}={}", kRunName, run_));
  variables.push_back(fmt::format("{}={}", kSecretVariable, secret_));
  variables.push_back(fmt::format("{}={}", kLauncherFd, link));
  return variables;
}

void LocalRanks::start(uint32_t rank) {
  auto [link, fd] = LauncherLink::make();
  const StreamSocket end_of_rank(fd);
  const std::vector<std::string> variables = variables_of(rank, fd);
  const pid_t launcher = getpid(), process = fork();
  if (process == 0) become_rank(rank, launcher, variables);
  if (process < 0) throw cannot_start(fmt::format("rank {} of {}", rank, options_.ranks), errno);
  ranks_[rank].process = process;
  ranks_[rank].link.emplace(std::move(link));
}

void LocalRanks::become_rank(uint32_t rank, pid_t launcher, const std::vector<std::string>& variables) const {
  settle_in_child(launcher);
  output_.redirect(rank);
  std::vector<std::string> words = options_.command;
  const bool is_own = words.front() == "train";
  if (is_own) words.insert(words.begin(), "terrace");
  const std::string program = is_own ? "/proc/self/exe" : words.front();
  const std::vector<char*> arguments = pointers_to(words), environment = pointers_to(variables);
  signals_.restore();
  execvpe(program.c_str(), arguments.data(), environment.data());
  print_error(cannot_start(program, errno));
  _exit(kFailed);
}

int LocalRanks::wait() {
  while (!are_over()) {
    poll_once();
    take_signals();
    for (Rank& rank : ranks_) take_words(rank);
    output_.copy();
    take_ends();
    end_those_that_stay();
  }
  output_.finish();
  if (dead_ && !said_) say_death();
  return worst_status_;
}

bool LocalRanks::are_over() const {
  return std::ranges::all_of(ranks_, &Rank::is_over);
}

void LocalRanks::poll_once() {
  std::vector<pollfd> watched{{signals_.fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    watched.push_back({rank.link->fd_to_hear(), POLLIN, 0});
  }
  output_.add_to(watched);
  poll(watched.data(), watched.size(), ms_to_next_deadline());
}

int LocalRanks::ms_to_next_deadline() const {
  int64_t least = -1;
  for (const std::optional<Moment>& moment : {ask_at_, end_at_}) {
    if (!moment) continue;
    const int64_t ms = std::max<int64_t>(0, std::chrono::ceil<milliseconds>(*moment - Steady::now()).count());
    least = least < 0 ? ms : std::min(least, ms);
  }
  return static_cast<int>(std::min<int64_t>(least, 3'600'000));
}

void LocalRanks::take_signals() {
  while (const std::optional<int> signal = signals_.take()) pass_on(*signal);
}

// The second wish ends a rank at once, if it is not stopped or asleep in the kernel.
void LocalRanks::pass_on(int signal) {
  passed_on_ = signal;
  wishes_ += signal != SIGHUP ? 1 : 0;
  if (wishes_ > 1 && !end_at_) end_at_ = Steady::now() + kForTheOthers;
  for (const Rank& rank : ranks_) {
    if (!rank.is_over) kill(rank.process, signal);
  }
}

void LocalRanks::take_words(Rank& rank) {
  while (const std::optional<LauncherWord> word = rank.link->hear()) {
    if (word->kind == LauncherWord::Kind::watching) rank.is_watching = true;
    if (word->kind == LauncherWord::Kind::said) said_ = true;
    if (word->kind == LauncherWord::Kind::kept) has_kept_ = true;
    if (word->kind == LauncherWord::Kind::stalled && word->rank < ranks_.size()) end_stalled(word->rank);
  }
}

// Others have told the user of it.
void LocalRanks::end_stalled(uint32_t rank) {
  said_ = true;
  if (!ranks_[rank].is_over) kill(ranks_[rank].process, SIGKILL);
}

void LocalRanks::take_ends() {
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    int status = 0;
    if (rank.is_over || waitpid(rank.process, &status, WNOHANG) != rank.process) continue;
    take_words(rank);  // its last ones
    rank.is_over = true;
    ended(r, status);
  }
}

void LocalRanks::ended(uint32_t rank, int status) {
  const bool has_died = WIFSIGNALED(status);
  const int signal = has_died ? WTERMSIG(status) : 0;
  const bool is_as_asked = has_died && signal == passed_on_;
  const int code = is_as_asked ? kEndedBySignal + signal : has_died ? kFailed : WEXITSTATUS(status);
  worst_status_ = std::max(worst_status_, code);
  if (code == 0) return;
  const bool is_ended_from_here =
      is_as_asked || (signal == SIGKILL && kills_) || (signal == SIGTERM && ask_at_);
  deaths_ += has_died && !is_ended_from_here ? 1 : 0;
  // Of several, the first one is to blame: the others die of it, or are ended from here.
  if (has_died && !dead_ && !ask_at_ && !is_as_asked) died(rank, static_cast<uint32_t>(signal));
  if (!ask_at_) ask_at_ = Steady::now() + kForARefusal;
}

void LocalRanks::died(uint32_t rank, uint32_t signal) {
  dead_ = rank;
  dead_signal_ = signal;
  ask_at_ = Steady::now();
  end_at_ = Steady::now() + kForTheOthers;
  for (const Rank& other : ranks_) {
    if (!other.is_over) other.link->tell({.kind = LauncherWord::Kind::death, .rank = rank, .signal = signal});
  }
}

void LocalRanks::end_those_that_stay() {
  const Moment now = Steady::now();
  for (const Rank& rank : ranks_) {
    if (rank.is_over) continue;
    if (end_at_ && now >= *end_at_) kills_ = kill(rank.process, SIGKILL) == 0;
    if (ask_at_ && now >= *ask_at_ && !rank.is_watching) kill(rank.process, SIGTERM);
  }
  // Once is enough; SIGKILL is tried again should it have to be.
  if (ask_at_ && now >= *ask_at_) ask_at_ = Moment::max();
  if (end_at_ && now >= *end_at_) end_at_ = now + std::chrono::seconds(1);
}

// No rank was left that could.
void LocalRanks::say_death() const {
  console_.error(
      Error(ErrorKind::peer,
            {fmt::format("rank {} of {} (process {}) died", *dead_, options_.ranks, ranks_[*dead_].process),
             "", "",
             fmt::format("killed by signal {} ({})\n  the same command with "
                         "--resume auto goes on from what the run has kept",
                         dead_signal_, strsignal(static_cast<int>(dead_signal_)))})
          .in(Door::program));
}

}  // namespace terrace
