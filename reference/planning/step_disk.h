// What a planned step has the disk do: which engine is whose, and what an update moves.
#pragma once

#include <algorithm>
#include <cstdint>

#include <terrace/offload/offloader.h>
#include <terrace/reference/setup/training_setup.h>

namespace terrace {

// The disk's part of an update, both directions; `passes_read_bytes` were read before it began.
inline uint64_t update_disk_bytes(const OffloadCounters& moved, uint64_t passes_read_bytes) {
  const uint64_t reads = moved.param_read_bytes + moved.gradient_read_bytes;
  return moved.record_read_bytes + moved.record_write_bytes + moved.param_write_bytes + reads -
         std::min(reads, passes_read_bytes);
}

inline constexpr uint32_t kNoEngine = UINT32_MAX;

// The engine through which the passes read and write, as OffloadHooks::decorate_engine numbers them.
inline uint32_t engine_of_passes(const TrainingSetup& setup) {
  const MemoryPlan& plan = setup.plan.memory;
  if (setup.offload.parameters == Placement::nvme) return 1;
  if (plan.spilled_chunks == 0 && plan.nvme_activation_entries == 0) return kNoEngine;
  return plan.keeps_commits ? 2 : 1;
}

}  // namespace terrace
