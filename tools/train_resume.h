// Where `terrace train` goes on from: the checkpoint that --resume names, or, with --resume auto, the best of
// the folder of --save, an earlier one when that is damaged, and the beginning when there is none.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/runtime/trainer.h>

#include "train_flags.h"

namespace terrace {

// The checkpoints to try, the best first; empty when the run starts anew. Says which of the two, with
// --resume auto. Reads manifests only. Throws Error when a checkpoint that must be used cannot be: the one
// that was named, or, with auto, all there are.
std::vector<std::filesystem::path> choose_checkpoints(const TrainFlags& flags, Log& log);

// Takes up the first that is whole; that another is damaged is a warning. Throws what the last one throws.
void take_up(std::span<const std::filesystem::path> checkpoints, Trainer& trainer, Log& log);

}  // namespace terrace
