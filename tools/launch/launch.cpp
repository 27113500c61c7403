// `terrace launch`: starts the ranks of a run: on this host by itself, and on the hosts of a hostfile with
// mpirun, which it becomes where it need not go on when ranks die.
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/comm/identity/hostfile.h>

#include "command_line.h"
#include "console.h"
#include "launch/mpirun_command.h"
#include "launch/rank_starter.h"
#include "launch/restarts.h"

namespace terrace {
namespace {

// More than any host has processors or GPUs, as in a hostfile.
constexpr uint32_t kMostRanks = 4096;

class Launch final : public Subcommand {
 public:
  explicit Launch(Command& app) {
    Command command = app.add_subcommand(name_, "Train with several processes, on this host or on several");
    const char* const here = "On this host";
    add_small_number(command, "-n", 1, ranks_, "Start N processes (ranks), which need no MPI", here);
    const char* const hosts = "On several hosts, with mpirun of Open MPI";
    command
        .add_option("--hostfile", hostfile_, "The hosts, a line \"HOST slots=N\" each, as DeepSpeed has them")
        .type_name("FILE")
        .group(hosts);
    command.add_option("--include", filter_.include, "Use these hosts and slots alone: host1@host2:0,1")
        .type_name("LIST")
        .group(hosts);
    command.add_option("--exclude", filter_.exclude, "Use all but these hosts and slots")
        .type_name("LIST")
        .group(hosts);
    add_small_number(command, "--num-nodes", 1, limits_.hosts, "Use the first N hosts", hosts);
    add_small_number(command, "--num-gpus", 1, limits_.slots_of_host, "Use the first N slots of each host",
                     hosts);
    const char* const deaths = "When ranks or hosts die";
    add_small_number(command, "--restarts", 1, rules_.restarts,
                     "Go on with those that are left, from what the run has kept, at most N times", deaths);
    add_small_number(command, "--min-ranks", 1, rules_.min_ranks, "With fewer ranks do not go on (default 1)",
                     deaths);
    command.add_option("--log-dir", log_folder_, "Write what each rank says to a file of its own as well")
        .type_name("DIR");
    command.add_option("command", command_, "Behind \"--\": train and its flags").type_name("-- train ...");
    command.footer(
        "Examples:\n"
        "  terrace launch -n 4 -- train --config ds.json --data corpus.txt --save run\n"
        "  terrace launch -n 4 --restarts 3 --min-ranks 2 -- train --config ds.json --data corpus.txt --save "
        "run\n"
        "  terrace launch --hostfile hosts --exclude worker-3 -- train --config ds.json --data corpus.txt\n"
        "  terrace launch --hostfile hosts --restarts 9 -- train --config ds.json --data corpus.txt --save "
        "/shared/run\n");
  }

  const std::string& name() const override { return name_; }
  int run() override {
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
    Console console;
    LocalStarter starter(*ranks_, log_folder_, console);
    require_enough(starter);
    return run_with_restarts(starter, command_, rules_, console);
  }

 private:
  [[noreturn]] static void refuse(std::string what, std::string reason, std::string advice) {
    throw Error(ErrorKind::config, {"cannot launch", std::move(what), std::move(reason), std::move(advice)});
  }

  void require_enough(const RankStarter& starter) const {
    if (rules_.min_ranks > starter.ranks())
      refuse(fmt::format("--min-ranks {}", rules_.min_ranks),
             fmt::format("the run begins with {}", starter.ranks()),
             "give it a smaller number, or start more");
  }

  void require_command() {
    if (command_.empty())
      refuse_missing("the command of the ranks", "write it behind \"--\": terrace launch -n 4 -- train ...");
    const std::string advice = "write `train` and its flags behind \"--\": terrace launch -n 4 -- train ...";
    if (command_.front() == "terrace")
      refuse("terrace", "the ranks run this program, whose name is left out", advice);
    if (command_.front() != "train") refuse(command_.front(), "only `train` runs as several ranks", advice);
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
    const bool filters = !filter_.include.empty() || !filter_.exclude.empty();
    if (filters && (limits_.hosts || limits_.slots_of_host))
      refuse("--num-nodes and --num-gpus", "hosts are chosen with --include or --exclude already",
             "leave one of the two out");
    const std::vector<HostSlots> hosts =
        limit_slots(choose_slots(read_hostfile(hostfile_), filter_), limits_);
    if (rules_.restarts > 0) {
      Console console;
      HostStarter starter(hosts, log_folder_, console);
      require_enough(starter);
      return run_with_restarts(starter, command_, rules_, console);
    }
    become_mpirun(
        mpirun_command(hosts, std::filesystem::read_symlink("/proc/self/exe"), command_, log_folder_));
  }

  const std::string name_ = "launch";
  std::optional<uint32_t> ranks_;
  std::string hostfile_, log_folder_;
  HostFilter filter_;
  HostLimits limits_;
  RestartRules rules_;
  std::vector<std::string> command_;
};

}  // namespace

std::unique_ptr<Subcommand> add_launch(Command& app) {
  return std::make_unique<Launch>(app);
}

}  // namespace terrace
