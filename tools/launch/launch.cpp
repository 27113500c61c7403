// `terrace launch`: starts the ranks of a run: on this host by itself, and on the hosts of a hostfile with
// mpirun, which it becomes.
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/comm/identity/hostfile.h>

#include "command_line.h"
#include "console.h"
#include "launch/launched_process.h"
#include "launch/mpirun_command.h"
#include "launch/restarts.h"

namespace terrace {
namespace {

// More than any host has processors or GPUs, as in a hostfile.
constexpr uint32_t kMostRanks = 4096;

class Launch final : public Subcommand {
 public:
  Launch(Command& app, std::vector<std::string> words)
      : Subcommand(app, "launch", "Train with several processes, on this host or on several"),
        words_behind_(std::move(words)) {
    FlagGroup(command_, "On this host")
        .count("-n", 1, ranks_, "Start N processes (ranks), which need no MPI");
    const FlagGroup hosts(command_, "On several hosts, with mpirun of Open MPI");
    hosts.text("--hostfile", "FILE", hostfile_,
               "The hosts, a line \"HOST slots=N\" each, as DeepSpeed has them");
    hosts.text("--include", "LIST", filter_.include, "Use these hosts and slots alone: host1@host2:0,1");
    hosts.text("--exclude", "LIST", filter_.exclude, "Use all but these hosts and slots");
    hosts.count("--num-nodes", 1, limits_.hosts, "Use the first N hosts");
    hosts.count("--num-gpus", 1, limits_.slots_of_host, "Use the first N slots of each host");
    const FlagGroup deaths(command_, "When ranks of this host die");
    deaths.count("--restarts", 1, rules_.restarts,
                 "Go on with those that are left, from what the run has kept, at most N times");
    deaths.count("--min-ranks", 1, rules_.min_ranks, "With fewer ranks do not go on (default 1)");
    const FlagGroup options(command_);
    options.text("--log-dir", "DIR", log_folder_, "Write what each rank says to a file of its own as well");
    options.text("command", "-- train ...", words_,
                 "Behind \"--\": train and its flags, or a program with terrace.ranks");
    command_.footer(
        "Examples:\n"
        "  terrace launch -n 4 -- train --config ds.json --data corpus.txt --save run\n"
        "  terrace launch -n 4 --restarts 3 --min-ranks 2 -- train --config ds.json --data corpus.txt --save "
        "run\n"
        "  terrace launch --hostfile hosts --exclude worker-3 -- train --config ds.json --data corpus.txt\n"
        "  terrace launch -n 2 -- python train.py\n");
  }

  int run() override {
    words_.insert(words_.end(), words_behind_.begin(), words_behind_.end());
    require_command();
    if (rules_.restarts == 0 && rules_.min_ranks > 1)
      refuse(fmt::format("--min-ranks {}", rules_.min_ranks),
             "it says with how many ranks --restarts goes on", "give --restarts, or leave it out");
    if (!hostfile_.empty()) return run_on_hosts();
    refuse_flags_of_hosts();
    if (!ranks_) refuse_missing("-n", "give the number of ranks, as in -n 4, or a --hostfile");
    if (*ranks_ > kMostRanks)
      refuse(fmt::format("-n {}", *ranks_), fmt::format("one host takes at most {} ranks", kMostRanks),
             "start fewer, or on the hosts of a --hostfile");
    if (rules_.min_ranks > *ranks_)
      refuse(fmt::format("--min-ranks {}", rules_.min_ranks), fmt::format("the run begins with {}", *ranks_),
             "give it a smaller number, or start more");
    Console console;
    return run_with_restarts({.ranks = *ranks_, .command = words_, .log_folder = log_folder_}, rules_,
                             console);
  }

 private:
  [[noreturn]] static void refuse(std::string what, std::string reason, std::string advice) {
    throw Error(ErrorKind::config, {"cannot launch", std::move(what), std::move(reason), std::move(advice)});
  }

  void require_command() {
    if (words_.empty())
      refuse_missing("the command of the ranks", "write it behind \"--\": terrace launch -n 4 -- train ...");
    const std::string advice = "write `train` and its flags behind \"--\": terrace launch -n 4 -- train ...";
    if (words_.front() == "terrace")
      refuse("terrace", "the ranks run this program, whose name is left out", advice);
    if (words_.front() != "train" && !is_program(words_.front()))
      refuse(words_.front(), "there is no such program, and of this one only `train` runs as several ranks",
             advice);
  }

  void refuse_flags_of_hosts() const {
    const bool filters = !filter_.include.empty() || !filter_.exclude.empty();
    if (filters || limits_.hosts || limits_.slots_of_host)
      refuse(filters ? "--include and --exclude" : "--num-nodes and --num-gpus",
             "they choose among the hosts of a --hostfile, and none is given",
             "give a --hostfile, or start ranks on this host with -n alone");
  }

  int run_on_hosts() {
    if (ranks_)
      refuse(fmt::format("-n {}", *ranks_), "the number of ranks follows from the --hostfile",
             "leave one of the two out; --num-nodes and --num-gpus use less of the hostfile");
    if (rules_.restarts > 0)
      refuse(fmt::format("--restarts {}", rules_.restarts),
             "it starts ranks of this host again, and those of several hosts are for torchrun to start again",
             "run `torchrun --nnodes N --max-restarts R --rdzv-backend c10d --rdzv-endpoint HOST:PORT "
             "--no-python -- terrace train ... --resume auto` on every host, or leave --restarts out");
    const bool filters = !filter_.include.empty() || !filter_.exclude.empty();
    if (filters && (limits_.hosts || limits_.slots_of_host))
      refuse("--num-nodes and --num-gpus", "hosts are chosen with --include or --exclude already",
             "leave one of the two out");
    const std::vector<HostSlots> hosts =
        limit_slots(choose_slots(read_hostfile(hostfile_), filter_), limits_);
    std::vector<std::string> argv = words_;
    if (argv.front() == "train") argv.insert(argv.begin(), std::filesystem::read_symlink("/proc/self/exe"));
    become_mpirun(mpirun_command(hosts, argv, log_folder_));
  }

  std::optional<uint32_t> ranks_;
  std::string hostfile_, log_folder_;
  HostFilter filter_;
  HostLimits limits_;
  RestartRules rules_;
  std::vector<std::string> words_;
  const std::vector<std::string> words_behind_;  // "--"
};

}  // namespace

std::unique_ptr<Subcommand> add_launch(Command& app, std::vector<std::string> words) {
  return std::make_unique<Launch>(app, std::move(words));
}

}  // namespace terrace
