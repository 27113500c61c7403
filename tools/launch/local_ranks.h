// LocalRanks: the processes of a run on this host, from their start to the end of the last of them. It passes
// signals on, knows who dies of what, tells the others, and ends those that do not end by themselves.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/comm/connections/run_secret.h>
#include <terrace/comm/liveness/launcher_link.h>

#include "console.h"
#include "launch/launched_process.h"
#include "launch/rank_output.h"

namespace terrace {

struct LocalRanksOptions {
  uint32_t ranks = 1;
  std::vector<std::string> command;  // of each rank: `train` and its flags, or another program and its own
  std::filesystem::path log_folder = {};  // empty: the ranks write to the screen alone
  bool appends_logs = false;              // behind what earlier ranks have written there
};

// One exists at a time; the thread that makes it must be the only one of the process.
class LocalRanks {
 public:
  // Starts the ranks. Throws Error(io) where that fails; no rank is left then.
  LocalRanks(const LocalRanksOptions& options, Console& console);
  // Ends the ranks that are left, and removes the folder in which they meet.
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  // Waits for the end of all ranks, and returns the worst of their statuses; that of one that died is 1.
  int wait();
  // When all are over: how many have died by themselves, and whether somebody has asked them to stop.
  uint32_t deaths() const { return deaths_; }
  bool was_stopped() const { return passed_on_ != 0; }
  bool has_kept() const { return has_kept_; }

 private:
  using Moment = std::chrono::steady_clock::time_point;
  struct Rank {
    pid_t process = -1;
    std::optional<LauncherLink> link;
    bool is_over = false;
    bool is_watching = false;  // it learns of deaths, and ends by itself
  };
  // A folder of the run's own, in which the ranks meet.
  class Folder {
   public:
    Folder();
    ~Folder();
    std::filesystem::path path;
  };

  void start(uint32_t rank);
  // The environment of a rank, which only processes of this user can read: that of this process, with what
  // the rank has to know.
  std::vector<std::string> variables_of(uint32_t rank, int link) const;
  [[noreturn]] void become_rank(uint32_t rank, pid_t launcher,
                                const std::vector<std::string>& variables) const;
  bool are_over() const;
  void poll_once();
  void take_signals();
  void pass_on(int signal);
  void take_words(Rank& rank);
  void end_stalled(uint32_t rank);
  void take_ends();
  void ended(uint32_t rank, int status);
  void died(uint32_t rank, uint32_t signal);
  void end_those_that_stay();
  int ms_to_next_deadline() const;
  void say_death() const;

  const LocalRanksOptions options_;
  Console& console_;
  const std::string run_ = new_run_name(), secret_ = secret_for_ranks();
  const Folder folder_;
  RankOutput output_;
  std::vector<Rank> ranks_;
  const LauncherSignals signals_;
  int passed_on_ = 0;    // the last signal that was; a rank that dies of it was asked to stop
  uint32_t wishes_ = 0;  // to stop; see StopSignals
  int worst_status_ = 0;
  std::optional<uint32_t> dead_;  // the first one that died
  uint32_t dead_signal_ = 0;
  uint32_t deaths_ = 0;
  bool kills_ = false;  // those that have not ended by themselves
  bool said_ = false;   // the user knows of the death
  bool has_kept_ = false;
  std::optional<Moment> ask_at_,
      end_at_;  // when ranks that do not watch get SIGTERM, and when all get SIGKILL
};

}  // namespace terrace
