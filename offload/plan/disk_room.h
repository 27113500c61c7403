// Whether the disks have room for the tier of a plan, before anything is allocated or created. It must never
// change anything there, and refuses only what cannot succeed: the stores look once more, each for itself.
#pragma once

#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

// Throws Error(capacity) where the file systems of all nvme paths together have less room than the plan
// takes, what a tier that is there already takes up included. Paths that cannot be looked at are left to
// whoever opens them.
void require_disk_room(const MemoryPlan& plan, const OffloadOptions& options);

}  // namespace terrace
