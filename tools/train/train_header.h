// The folders that `terrace train` writes to: whether they can be used, and what a crash would cost.
#pragma once

#include <memory>
#include <string>

#include <terrace/base/log.h>
#include <terrace/runtime/train/checkpoint/checkpoint_folder.h>
#include <terrace/runtime/train/trainer.h>

#include "flags/train_flags.h"

namespace terrace {

// What protects the run against a crash, how it goes on after one, and how much is lost then; one line.
std::string crash_notice(const TrainFlags& flags, const TrainConfig& config, const TrainerPlan& plan);

// The folder of --save, which is this run's alone from now on; null without one. Throws Error(config) when it
// has the checkpoints of another run, Error(io) when it cannot be written to or another job saves there, and
// Error(capacity) when a checkpoint, together with the tier files of the run, has no room there.
std::unique_ptr<CheckpointFolder> open_save_folder(const TrainFlags& flags, const TrainerPlan& plan,
                                                   Log& log);
// Unless the folders of what is on nvme are there, throws Error(config), and unless they can be written to,
// Error(io).
void check_nvme_folders(const PlacementConfig& placement);

}  // namespace terrace
