// RunRanks: this process among those that a launcher has started to train together. The first of them speaks,
// writes the files of the run and answers requests; of the others there are warnings and errors alone.
#pragma once

#include <memory>
#include <optional>

#include <terrace/base/error.h>
#include <terrace/comm/identity/rank_identity.h>
#include <terrace/comm/messages/message_communicator.h>
#include <terrace/runtime/train/data/training_data.h>
#include <terrace/runtime/train/trainer.h>

#include "console.h"
#include "flags/train_flags.h"
#include "train/early_end.h"
#include "train/rank_watch.h"

namespace terrace {

// Makes the configuration that of one of several ranks of a host, which share its memory and its processors.
void share_host(TrainConfig& config, uint32_t ranks_on_host);

// Throws Error(config) on every rank where they were not started to train the same, naming each difference.
void require_same_run(const TrainerOptions& options, const TrainFlags& flags, const TrainingData& data);

class RunRanks {
 public:
  // Takes from `flags` what is the first rank's alone, and tells `terrace launch` that this rank is there; a
  // launcher that cannot be reached is a warning. All arguments outlive this. Throws Error(config) where the
  // launcher's variables contradict each other.
  RunRanks(TrainFlags& flags, Console& console);
  // Joins the other ranks. Throws Error(config) or Error(peer) where they cannot be reached.
  void join();
  // Leaves this rank the nvme paths that it uses. The ranks have joined.
  void take_paths(TrainConfig& config) const;
  // The end of a rank whose command line cannot be used: it joins the others to tell them, and the user once.
  // Returns the exit status.
  static int refuse(const Error& failure);

  bool are_several() const { return !identity_.alone(); }
  bool is_first() const { return identity_.rank == 0; }
  // Makes the options those of this rank. Throws Error(config) for what several ranks cannot do, and where
  // the configuration was made for another number of them.
  void apply_to(TrainerOptions& options) const;
  // Null: there is one rank. Its places are known.
  const Communicator* communicator() const { return communicator_.get(); }
  // Null: there is one rank.
  RankWatch* watch() const { return watch_.get(); }
  // While it lives, the other ranks are told what the trainer does; null where there are none.
  std::unique_ptr<RankWatch::Following> follow(Trainer& trainer) const;
  // The death of a rank that is behind a failure, as the user is told of it; nothing where none is.
  std::optional<Error> death_behind(const Error& failure) const;
  // Says why this rank ends: it tells the others, so that none waits for it, and the user, to whom all ranks
  // say it once. Returns the exit status.
  int end_with(const Error& failure) const;

 private:
  void join(const TerraceConfig& config);
  LauncherLink reach_launcher() const;
  void leave_out_sub_groups_of_parts(TrainConfig& config) const;

  TrainFlags& flags_;
  Console& console_;
  const Environment variables_;
  const RankIdentity identity_;
  LauncherLink launcher_;  // ends last, so that a rank that dies while it ends has died
  std::optional<EarlyEnd> early_end_;
  std::unique_ptr<MessageCommunicator> communicator_;  // null: there is one rank, or they have not met
  std::unique_ptr<RankWatch> watch_;                   // null: as that
};

}  // namespace terrace
