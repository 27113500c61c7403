// require_disk_room(): checks that the drives have room for the tier of a plan, before anything is allocated
// or created. It must never change anything on a drive. It refuses only what cannot succeed: every store
// checks again for itself.
#pragma once

#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

// Throws Error(capacity) where the file systems of all nvme paths together have less room than the plan
// takes; the room that an existing tier takes up counts as free. Paths that cannot be examined are left to
// the code that opens them.
void require_disk_room(const MemoryPlan& plan, const OffloadOptions& options);

}  // namespace terrace
