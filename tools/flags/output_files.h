// The files that a run writes beside its checkpoints, checked before anything is done.
#pragma once

#include "flags/train_flags.h"

namespace terrace {

// Checks that every output is a regular file, or does not exist yet, in a writable folder, and is neither
// another output nor an input of the run. If one is a link, its flag is set to the link's target. Throws
// Error(config).
void check_output_files(TrainFlags& flags);

}  // namespace terrace
