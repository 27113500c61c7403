// The files that a run writes beside its checkpoints, checked before anything is done.
#pragma once

#include "flags/train_flags.h"

namespace terrace {

// Checks that every file to be written is a regular file, or none yet, in a writable folder, and neither
// another output nor an input of the run. If one is a link, its flag is set to the link's target. Throws
// Error(config).
void check_output_files(TrainFlags& flags);

}  // namespace terrace
