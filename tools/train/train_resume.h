// Where `terrace train` goes on from: the commit on its nvme paths, a checkpoint, or the beginning; and
// whether a commit that is there may go. It must never give up a commit that nobody said to give up, but one
// that is older than the checkpoint of the same run that is taken instead.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/runtime/train/checkpoint/found_commit.h>
#include <terrace/runtime/train/trainer.h>

#include "flags/train_flags.h"

namespace terrace {

struct RunStart {
  std::optional<SavedState> commit;                // tried first
  std::vector<std::filesystem::path> checkpoints;  // then these, the best first
  bool discard_commits = false;                    // when the run begins without `commit`

  bool is_resumed() const { return commit || !checkpoints.empty(); }
};

// Says what was chosen, with --resume auto. Reads manifests only. Throws Error when what must be used cannot
// be: what was named, or, with auto, all there is; and Error(config) when a commit would be lost.
RunStart choose_start(const TrainFlags& flags, const TrainConfig& config, Log& log);

// `options` and `setup` as planned for the start. Makes the trainer and takes up what is to be gone on from;
// that something better is damaged is a warning, where there is something else. Throws what the last one
// throws. `before_making` sees the setup that is used.
std::unique_ptr<Trainer> make_trainer(const RunStart& start, TrainerOptions& options, TrainingSetup setup,
                                      const TrainingData& data,
                                      FunctionRef<void(TrainingSetup&)> before_making, Log& log);

}  // namespace terrace
