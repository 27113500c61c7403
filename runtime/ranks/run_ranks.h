// RunRanks: this process among those that a launcher has started to train together: they join, agree, watch
// each other and end together. The first of them speaks, writes the files of the run and answers requests.
// Where there is one rank all of this is nothing, and no caller asks. It knows no model, no flags and no
// console.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/comm/identity/rank_identity.h>
#include <terrace/comm/liveness/launcher_link.h>
#include <terrace/comm/messages/message_communicator.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/ranks/rank_program.h>
#include <terrace/runtime/ranks/rank_watch.h>

namespace terrace {

// How the ranks of a run meet; what they gather by NCCL, once they have met, is NcclExchange's.
struct RankMeeting {
  CommunicatorChoice communicator = CommunicatorChoice::automatic;
  std::chrono::seconds timeout{60};  // ranks that have not come by then are missing
};

class RunRanks {
 public:
  // Finds its rank in the variables of its launcher, or in `given`, and tells `terrace launch` that this rank
  // is there; a launcher that cannot be reached is a warning. `program` outlives this. Throws Error(config)
  // where they contradict each other.
  RunRanks(Environment variables, RankProgram& program, const GivenRank& given = {});
  // Joins the other ranks. Throws Error(config) or Error(peer) where they cannot be reached; after that only
  // end_with() may be called.
  void join(const RankMeeting& meeting);

  const RankIdentity& identity() const { return identity_; }
  bool are_several() const { return !identity_.alone(); }
  bool is_first() const { return identity_.rank == 0; }
  // Null: there is one rank. Its places are known.
  MessageCommunicator* communicator() const { return communicator_.get(); }
  // That of NoOtherRanks where there is one rank.
  RankWatch& watch() const { return *watch_; }
  // Takes what is the same on all ranks, and is to be said once.
  Log& log_of_all() const { return is_first() ? program_.log() : silence_; }
  // What the first rank makes for the run; the others have the default.
  template <typename Make>
  std::invoke_result_t<Make> on_first(Make make) const {
    return is_first() ? make() : std::invoke_result_t<Make>();
  }
  // Throws Error(config) on every rank where a fact is not the same on all. `facts` is not called where there
  // is one rank. Nothing of the gather lane is under way.
  void agree(FunctionRef<std::map<std::string, std::string>()> facts) const;

  // Leaves this rank the nvme paths that it uses. The ranks have joined.
  void take_paths(TrainConfig& config) const;
  // Makes the configuration that of this rank. Throws Error(config) for what several ranks cannot do, and
  // where it was made for another number of them.
  void apply_to(TrainConfig& config) const;

  // Says why this rank ends: it tells the others, so that none waits for it, and the user, to whom all ranks
  // say it once. Returns the exit status, which is `status` where no other rank knows better.
  int end_with(const Error& failure, int status) const;

 private:
  class Silence final : public Log {
    void write(LogLevel, std::string_view) override {}
  };
  MakeMessagePort message_port(const RankMeeting& meeting) const;
  void leave_out_sub_groups_of_parts(TrainConfig& config) const;

  RankProgram& program_;
  mutable Silence silence_;
  const Environment variables_;
  const RankIdentity identity_;
  LauncherLink launcher_;  // closed where `terrace launch` has not started the ranks
  std::unique_ptr<MessageCommunicator> communicator_;  // null: there is one rank, or they have not met
  std::unique_ptr<RankWatch> watch_;                   // never null
};

}  // namespace terrace
