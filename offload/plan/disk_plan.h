// PathShare: the room that a run takes on every nvme path, computed from its plan, for the header of a run
// and for refusals before anything is created. It must never look at a drive.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

struct PathShare {
  std::filesystem::path path;
  uint64_t bytes = 0;        // with the head-room for a path's share to grow when another path slows
  uint64_t least_bytes = 0;  // without head-room: the path's part when space is short everywhere
};

// The shares list every path of states or parameters once, those of the states first. Several paths may
// together take less head-room than this where space is short.
std::vector<PathShare> share_disk(const MemoryPlan& plan, const OffloadOptions& options);

}  // namespace terrace
