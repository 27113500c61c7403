// HostRanks: the ranks of a run on several hosts, as mpirun starts them, from their start to the end of
// mpirun. All ranks come to this launcher (LauncherLink), so it knows which of them have died by themselves,
// and which have ended or were killed because others did.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/comm/connections/rank_handshake.h>
#include <terrace/comm/connections/stream_socket.h>
#include <terrace/comm/identity/hostfile.h>
#include <terrace/comm/liveness/launcher_link.h>

#include "launch/launched_process.h"

namespace terrace {

struct HostRanksOptions {
  std::vector<HostSlots> hosts;             // ranks are numbered host by host
  std::vector<std::string> arguments = {};  // of this program, in each rank
  std::filesystem::path log_folder = {};    // empty: the ranks write to the screen alone
  uint32_t new_gradient_group = 1;          // of a run that begins (kNewGradientGroup)
};

// One exists at a time; the thread that makes it must be the only one of the process.
class HostRanks {
 public:
  // Starts mpirun. Throws Error(io) where that fails.
  explicit HostRanks(const HostRanksOptions& options);
  // Ends what is left of mpirun.
  ~HostRanks();
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;

  // Waits for the end of mpirun, and returns its status.
  int wait();

  // --- When it is over ---
  const std::string& run() const { return run_; }
  bool was_stopped() const { return signals_handed_on_ > 0; }  // somebody has asked the ranks to end
  bool has_kept() const { return has_kept_; }
  // Whether anything but a reason that the ranks have said themselves may be behind the end.
  bool may_have_lost() const;
  // Whether a rank or mpirun has died, whichever it was.
  bool has_lost() const { return has_lost_rank_ || mpirun_died_ || says_signal_ || mpirun_ends_all_; }
  // Whether no rank has come, and so none could say why.
  bool is_unheard() const;
  bool has_died(uint32_t rank) const { return ranks_[rank].has_died; }
  // Whether the process of the rank is over for all that is known here.
  bool is_over(uint32_t rank) const { return ranks_[rank].is_over(); }

 private:
  using Moment = std::chrono::steady_clock::time_point;
  struct Rank {
    std::optional<LauncherLink> link;
    bool says_end = false;     // for a reason of its own
    bool is_asked = false;     // by mpirun
    bool has_died = false;     // by itself
    bool is_wordless = false;  // has ended, and has not said that it does
    bool is_named = false;     // another rank says that it has lost this one
    std::optional<Moment> ended_at;
    bool is_over() const { return link && link->has_ended() && !link->has_fallen_silent(); }
  };

  [[noreturn]] void become_mpirun(pid_t launcher) const;
  void poll_once();
  int ms_to_next_deadline() const;
  void take_signals();
  void take_those_that_came();
  void take_words(uint32_t rank);
  void has_ended(uint32_t rank);
  void take_end();
  void hear_last_words();
  void settle_deaths();
  void end_mpirun_that_stays();
  void is_asked(uint32_t rank);
  void lost_one();

  const HostRanksOptions options_;
  const std::string run_;
  const std::string secret_;
  const ListeningSocket listener_;
  RankHandshake handshake_;
  std::vector<Rank> ranks_;
  const LauncherSignals signals_;
  pid_t mpirun_ = -1;
  bool is_over_ = false;  // mpirun
  int mpirun_status_ = 0;
  int status_ = 0;
  bool has_kept_ = false;
  bool has_lost_rank_ = false;
  bool mpirun_died_ = false;
  bool mpirun_ends_all_ = false;  // though none has failed: it has lost a daemon
  bool says_signal_ = false;      // mpirun: a process was killed by one, and no rank has said a reason
  uint32_t signals_handed_on_ = 0;
  std::optional<Moment> first_ended_at_;  // of all ranks, whatever of
  std::optional<Moment> end_at_;          // when mpirun is killed, should it still be there
  bool kills_mpirun_ = false;
};

}  // namespace terrace
