// RunRanks: this process among those that a launcher has started to train together. The first of them speaks,
// writes the files of the run and answers requests; of the others there are warnings and errors alone.
#pragma once

#include <memory>

#include <terrace/base/error.h>
#include <terrace/comm/communicator.h>
#include <terrace/comm/rank_identity.h>
#include <terrace/runtime/train/trainer.h>

#include "console.h"
#include "flags/train_flags.h"

namespace terrace {

class RunRanks {
 public:
  // Joins the other ranks, and takes from `flags` what is the first one's alone. Throws Error(config) where
  // they cannot be reached.
  RunRanks(TrainFlags& flags, Console& console);

  bool are_several() const { return communicator_ != nullptr; }
  bool is_first() const { return identity_.rank == 0; }
  // Makes the options those of this rank. Throws Error(config) for what several ranks cannot do, and where
  // the configuration was made for another number of them.
  void apply_to(TrainerOptions& options) const;
  // Says why this rank ends: it tells the others, so that none waits for it, and prints what is news to the
  // user. What other ranks fail with they say themselves.
  void end_with(const Error& failure, Console& console) const;

 private:
  const Environment variables_;
  const RankIdentity identity_;
  std::unique_ptr<Communicator> communicator_;  // null: there is one rank
};

}  // namespace terrace
