// The files that a run writes beside its checkpoints, looked at before anything is done.
#pragma once

#include "flags/train_flags.h"

namespace terrace {

// What is written anew has to be a regular file, or none yet, in a folder that can be written to, no two of
// them the same, and none of them what the run reads; where one is a link its flag is set to what the link
// leads to. Throws Error(config).
void check_output_files(TrainFlags& flags);

}  // namespace terrace
