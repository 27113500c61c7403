// require_disk_room(): checks that the drives have room for the tier of a plan, before anything is allocated
// or created. It must never change anything on a drive. It refuses only what cannot succeed: every store
// checks again for itself.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

// Throws Error(capacity) where the file systems of all nvme paths together have less room than the plan
// takes; the room that an existing tier takes up counts as free. Paths that cannot be examined are left to
// the code that opens them.
void require_disk_room(const MemoryPlan& plan, const OffloadOptions& options);

// The drives of one of several ranks, and what it asks of them, in bytes. Ranks tell each other.
struct DiskNeed {
  uint64_t drives = 0;  // the same for ranks of one host that have the same drives
  uint64_t needed = 0;  // 0 where nothing lives on nvme, and where the drives cannot be examined
  uint64_t held = 0;    // by an existing tier, which the run takes up or removes
  uint64_t free = 0;    // of the file systems, each counted once
};
// `host` is that of the rank among those of the run.
DiskNeed disk_need(const MemoryPlan& plan, const OffloadOptions& options, uint32_t host);
// The same where `ranks` are the needs of all ranks, `own` among them: what is taken of the same drives is
// added up.
void require_disk_room(const MemoryPlan& plan, const OffloadOptions& options, const DiskNeed& own,
                       std::span<const DiskNeed> ranks);

}  // namespace terrace
