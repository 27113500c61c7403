// The ranks of a combination, as threads of this process that reach each other by its back end.
#pragma once

#include <memory>

#include "comm/rank_worlds.h"
#include "laws/factors.h"

namespace terrace::laws {

std::unique_ptr<testing::RankWorld> make_law_world(const Combination& combination);

}  // namespace terrace::laws
