// What a run takes of every nvme path, from its plan: for headers, and for refusals before anything is
// created. It must never look at a disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

struct PathShare {
  std::filesystem::path path;
  uint64_t bytes = 0;        // with the head-room that lets the share of a path grow when another one slows
  uint64_t least_bytes = 0;  // without: the path's part when space is short everywhere
};

// Every path that holds states or parameters once, those of the states first. Several paths may together take
// less head-room than this where space is short.
std::vector<PathShare> share_disk(const MemoryPlan& plan, const OffloadOptions& options);

}  // namespace terrace
