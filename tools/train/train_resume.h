// Chooses where `terrace train` goes on from: the commit on its nvme paths, of as many ranks or of another
// number of them, with records of the same layout or of another, a checkpoint, or the beginning.
// It also decides whether an existing commit may go. It must never give up a commit without being told to,
// except one that is older than the checkpoint of the same run that is taken instead.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/checkpoint/found_commit.h>
#include <terrace/runtime/checkpoint/state_set.h>

#include "flags/train_flags.h"

namespace terrace {

struct RunStart {
  std::optional<SavedState> commit;  // tried first: it is taken up where it lies
  // Or this: what another number of ranks has committed, or a run whose records have another layout.
  std::optional<StateSet> set;
  std::string conversion;  // what becomes of records of another layout, for people; empty: they have this one
  std::string tier_name;   // of the place of this rank's tier
  std::vector<std::filesystem::path> checkpoints;  // tried next, the best first
  bool discard_commits = false;                    // set if the run begins without `commit`
  // What becomes of a state that is not gone on from, for people; empty: nothing. It is so once there is a
  // trainer, and not where the run is refused before.
  std::string given_up;
  // What lies in other places on the paths; it goes when this run has a commit.
  std::vector<StateSet> passed;

  bool is_resumed() const { return commit || set || !checkpoints.empty(); }
};

// With --resume auto it logs the choice. It reads manifests only. Throws Error if the named state cannot be
// used or, with auto, none of those that exist can; and Error(config) if a commit would be lost. Of several
// ranks every one calls it; all must come to the same (facts_of).
RunStart choose_start(const TrainFlags& flags, const TrainConfig& config, Communicator* ranks, Log& log);

// Gives the run the gradient groups of the state that it goes on from; throws Error(config) where its
// configuration asks for others.
void keep_gradient_group(const RunStart& start, BatchConfig& batch);

// What all ranks of a run must have chosen alike.
std::map<std::string, std::string> facts_of(const RunStart& start);

// Makes the trainer with `options` and `setup`, which were planned for `start`, and takes up its state. If a
// state is damaged and there is another, it warns and takes that one; otherwise it throws the failure of the
// last. Several ranks choose among checkpoints before they load one, and end where a commit is damaged.
// `before_making` sees the setup that is used.
std::unique_ptr<Trainer> make_trainer(const RunStart& start, TrainerOptions& options, TrainingSetup setup,
                                      const TrainingData& data,
                                      FunctionRef<void(TrainingSetup&)> before_making, Log& log);

}  // namespace terrace
