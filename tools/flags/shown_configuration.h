// --print-config and --explain: what a run with these flags would have, in place of the run.
#pragma once

#include "console.h"
#include "flags/train_flags.h"

namespace terrace {

bool wants_configuration(const TrainFlags& flags);

// Prints it, settled for this machine, and returns the exit status. An unknown model is refused too.
int show_configuration(const TrainFlags& flags, Console& console);

}  // namespace terrace
