#include "laws/law_world.h"

#include <algorithm>

#include "laws/law_training.h"

namespace terrace::laws {

using testing::RankWorldKind;

// Small parts are read, too: those of the law's models are.
std::unique_ptr<testing::RankWorld> make_law_world(const Combination& c) {
  const std::vector<RankWorldKind> kinds = testing::rank_world_kinds();
  const std::string_view back_end = level_of(c, kBackEnd);
  const std::string_view name = back_end == "threads" || back_end == "waiting"  ? "Threads"
                                : back_end == "messages"                        ? "LateMessages"
                                : back_end == "nccl" && rounds_of(c).hosts == 1 ? testing::kNcclForBoth
                                                                                : "LatePeers";
  return std::ranges::find(kinds, name, &RankWorldKind::name)
      ->make({.ranks = rounds_of(c).ranks, .hosts = rounds_of(c).hosts});
}

}  // namespace terrace::laws
