// Restarts: how `terrace launch` goes on when ranks have died: with those that are left, from what the run
// has kept. The number of ranks changes no bit, so it is the same training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "console.h"
#include "launch/rank_starter.h"

namespace terrace {

struct RestartRules {
  uint32_t restarts = 0;   // at most
  uint32_t min_ranks = 1;  // with fewer it does not go on
};

// The command of a run that goes on: that of `train` with --resume auto, and without --fresh. Throws
// Error(config) where the command goes on from a folder of its choice, which is not where it keeps its state.
std::vector<std::string> going_on(const std::vector<std::string>& arguments);

// Runs the ranks with the arguments, and those that are left after a death, as often as the rules have it.
// Returns the status of the last run. Throws as going_on() does.
int run_with_restarts(RankStarter& ranks, const std::vector<std::string>& arguments,
                      const RestartRules& rules, Console& console);

}  // namespace terrace
