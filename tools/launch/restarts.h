// Restarts: how `terrace launch` goes on when ranks have died: with those that are left, from what the run
// has kept. The number of ranks changes no bit, so it is the same training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "console.h"
#include "launch/local_ranks.h"

namespace terrace {

struct RestartRules {
  uint32_t restarts = 0;   // at most
  uint32_t min_ranks = 1;  // with fewer it does not go on
};

// The command of a run that goes on: that of `train` with --resume auto, and without --fresh. Throws
// Error(config) where the command goes on from a folder of its choice, which is not where it keeps its state.
std::vector<std::string> going_on(const std::vector<std::string>& arguments);

// Runs the ranks, and those that are left after a death, as often as the rules have it. A program that is not
// `train` has the same command each time, and finds by itself what it has kept. If it fails after it has kept
// a state, it runs again on as many ranks, as torchrun has it. Returns the status of the last run. Throws as
// going_on() does.
int run_with_restarts(LocalRanksOptions ranks, const RestartRules& rules, Console& console);

}  // namespace terrace
