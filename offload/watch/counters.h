// What an Offloader counts, and the least that a step could move.
#pragma once

#include <cstdint>

#include <terrace/offload/watch/time_account.h>

namespace terrace {

// Bytes moved and time waited since the Offloader was made.
struct OffloadCounters {
  uint64_t h2d_bytes = 0;
  uint64_t d2h_bytes = 0;
  uint64_t param_read_bytes = 0;   // nvme
  uint64_t direct_read_bytes = 0;  // of these, by the device itself: not in h2d_bytes
  uint64_t param_write_bytes = 0;
  uint64_t record_read_bytes = 0;
  uint64_t record_write_bytes = 0;
  uint64_t cache_read_bytes = 0;  // records that entered host memory, or left it, with a change of its budget
  uint64_t cache_write_bytes = 0;
  uint64_t gradient_read_bytes = 0;  // of spilled ones
  uint64_t gradient_write_bytes = 0;
  uint64_t update_gradient_read_bytes = 0;  // of gradient_read_bytes: by updates; the rest adds micro-batches
  uint64_t activation_read_bytes = 0;       // nvme, of checkpointed ones
  uint64_t activation_write_bytes = 0;
  uint64_t restore_read_bytes = 0;    // of records, for parameters that a step without an update had given up
  uint64_t activation_d2h_bytes = 0;  // checkpointed activations; not in d2h_bytes and h2d_bytes
  uint64_t activation_h2d_bytes = 0;
  uint64_t fetch_count = 0;         // chunks of parameters copied to the device
  uint64_t demand_fetch_count = 0;  // of these, not started before they were needed
  uint64_t eviction_count = 0;
  uint64_t restored_chunk_count = 0;  // chunks whose parameters were made of their masters again
  uint64_t fetch_wait_ns = 0;         // leases waiting for parameters
  uint64_t activation_wait_ns = 0;
  uint64_t landing_wait_ns = 0;  // waiting for gradients to reach the place of the update
  uint64_t update_wait_ns = 0;   // the update waiting for the disk
  uint64_t turn_wait_ns = 0;     // the update waiting for its turn on the drives, beside that
  // The step thread waiting for an update that runs beside it: operations for their parameters (that is in
  // fetch_wait_ns too), the first backward use for the rest, and the end of the step in during_backward (that
  // is in update_ns too).
  uint64_t pending_update_wait_ns = 0;
  uint64_t update_ns = 0;
  // Parts of update_ns beside update_wait_ns.
  uint64_t update_write_wait_ns = 0;   // of update_wait_ns: with nothing left that is being read
  uint64_t update_compute_ns = 0;      // as the thread that runs it sees it
  uint64_t update_check_ns = 0;        // checksums
  uint64_t update_device_wait_ns = 0;  // for what is updated on the device
  uint64_t norm_ns = 0;                // before the first record is touched
  // Commits: the blocks that were written because they were newer in host memory than in the tier, and no
  // others. The bytes of the manifests come on top.
  uint64_t commit_count = 0;  // that became durable
  uint64_t commit_write_bytes = 0;
  uint64_t manifest_bytes = 0;
  uint64_t commit_wait_ns = 0;  // the step thread waiting for commits; what of it falls into an update is in
                                // update_ns too
  // Where the step thread's time went: every nanosecond of it, once.
  TimeParts time;
  // With something on the way, whatever the step thread did meanwhile.
  uint64_t h2d_busy_ns = 0;
  uint64_t d2h_busy_ns = 0;
  uint64_t disk_busy_ns = 0;  // any path of nvme
};
OffloadCounters operator-(const OffloadCounters& later, const OffloadCounters& earlier);
OffloadCounters operator+(const OffloadCounters& one, const OffloadCounters& other);

// How a step begins: while the update of the one before is still to come (next_forward), so that new
// parameters come to the device from where they are made, or when every update is over.
enum class StepStart : uint8_t { behind_update, at_rest };

// The least bytes any order of decisions could move in one training step with these budgets, gradients being
// where they are: on the device from the first use that adds to them to the last.
struct TrafficBound {
  uint64_t h2d_bytes = 0;
  uint64_t d2h_bytes = 0;
  uint64_t param_read_bytes = 0;
  uint64_t direct_read_bytes = 0;  // of these
  uint64_t param_write_bytes = 0;
  uint64_t record_read_bytes = 0;
  uint64_t record_write_bytes = 0;
  uint64_t gradient_read_bytes = 0;
  uint64_t gradient_write_bytes = 0;
};

}  // namespace terrace
