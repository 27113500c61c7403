// OffloadCounters: what an Offloader counts. TrafficBound: the least bytes that a step could move.
#pragma once

#include <cstdint>

#include <terrace/offload/watch/time_account.h>

namespace terrace {

// Bytes moved and time waited since the Offloader was made.
struct OffloadCounters {
  uint64_t h2d_bytes = 0;
  uint64_t d2h_bytes = 0;
  uint64_t param_read_bytes = 0;   // nvme
  uint64_t direct_read_bytes = 0;  // of param_read_bytes, by the device itself; not in h2d_bytes
  uint64_t param_write_bytes = 0;
  uint64_t record_read_bytes = 0;
  uint64_t record_write_bytes = 0;
  // cache_read_bytes and cache_write_bytes: records that entered or left host memory with a change of its
  // budget.
  uint64_t cache_read_bytes = 0;
  uint64_t cache_write_bytes = 0;
  uint64_t gradient_read_bytes = 0;  // spilled gradients
  uint64_t gradient_write_bytes = 0;
  uint64_t update_gradient_read_bytes = 0;  // of gradient_read_bytes, by updates; accumulation reads the rest
  uint64_t activation_read_bytes = 0;       // nvme, checkpointed activations
  uint64_t activation_write_bytes = 0;
  uint64_t restore_read_bytes = 0;    // records, for parameters that a step without an update gave up
  uint64_t activation_d2h_bytes = 0;  // checkpointed activations; not in d2h_bytes and h2d_bytes
  uint64_t activation_h2d_bytes = 0;
  // Between ranks: parameters that come together on the device, and gradients that go to their owners.
  uint64_t gather_in_bytes = 0;
  uint64_t gather_out_bytes = 0;
  uint64_t exchange_in_bytes = 0;
  uint64_t exchange_out_bytes = 0;
  // Of these, what came from other hosts and went there (OffloadOptions::hosts).
  uint64_t host_gather_in_bytes = 0;
  uint64_t host_gather_out_bytes = 0;
  uint64_t host_exchange_in_bytes = 0;
  uint64_t host_exchange_out_bytes = 0;
  uint64_t fetch_count = 0;         // chunks of parameters copied to the device
  uint64_t demand_fetch_count = 0;  // of fetch_count, not started before they were needed
  uint64_t eviction_count = 0;
  uint64_t restored_chunk_count = 0;  // chunks whose parameters were made from their masters again
  uint64_t fetch_wait_ns = 0;         // leases waiting for parameters
  uint64_t activation_wait_ns = 0;
  uint64_t landing_wait_ns = 0;  // waiting for gradients to reach the place of the update
  uint64_t update_wait_ns = 0;   // the update waiting for the drives
  // The step thread waiting for an update that runs beside it: operations for their parameters (also in
  // fetch_wait_ns), the first backward use for the rest, and the end of the step in during_backward (also in
  // update_ns).
  uint64_t pending_update_wait_ns = 0;
  uint64_t update_ns = 0;
  // The following are parts of update_ns, as is update_wait_ns.
  uint64_t update_write_wait_ns = 0;   // of update_wait_ns, while nothing is being read
  uint64_t update_compute_ns = 0;      // by the clock of the thread that runs the update
  uint64_t update_check_ns = 0;        // checksums
  uint64_t update_device_wait_ns = 0;  // waiting for chunks that the device updates
  uint64_t norm_ns = 0;                // the norm, before the first record is touched
  // commit_write_bytes counts only the blocks that were written because they were newer in host memory than
  // in the tier. manifest_bytes come on top.
  uint64_t commit_count = 0;  // commits that became durable
  uint64_t commit_write_bytes = 0;
  uint64_t manifest_bytes = 0;
  uint64_t commit_wait_ns = 0;  // the step thread waiting for commits; within an update also in update_ns
  // The step thread waiting for other ranks: for their parameters, their gradients, and a word of each. These
  // are parts of the time of TimeCause::ranks.
  uint64_t gather_wait_ns = 0;
  uint64_t exchange_wait_ns = 0;
  uint64_t ballot_wait_ns = 0;
  // The step thread's time by cause: every nanosecond is counted once.
  TimeParts time;
  // The time in which at least one transfer was under way, whatever the step thread did meanwhile.
  uint64_t h2d_busy_ns = 0;
  uint64_t d2h_busy_ns = 0;
  uint64_t disk_busy_ns = 0;  // any path of nvme
};
OffloadCounters operator-(const OffloadCounters& later, const OffloadCounters& earlier);
OffloadCounters operator+(const OffloadCounters& one, const OffloadCounters& other);

// How a step begins. behind_update: the update of the step before is still pending (next_forward), and new
// parameters come to the device from where they are made. at_rest: every update is over.
enum class StepStart : uint8_t { behind_update, at_rest };

// The least bytes that any order of decisions could move in one training step with these budgets, if every
// trained tensor is updated. Gradients stay on the device from the first use that adds to them to the last.
struct TrafficBound {
  uint64_t h2d_bytes = 0;
  uint64_t d2h_bytes = 0;
  uint64_t param_read_bytes = 0;
  uint64_t direct_read_bytes = 0;  // of param_read_bytes
  uint64_t param_write_bytes = 0;
  uint64_t record_read_bytes = 0;
  uint64_t record_write_bytes = 0;
  uint64_t gradient_read_bytes = 0;
  uint64_t gradient_write_bytes = 0;
  uint64_t gather_in_bytes = 0;
  uint64_t gather_out_bytes = 0;
  uint64_t exchange_in_bytes = 0;
  uint64_t exchange_out_bytes = 0;
  uint64_t host_gather_in_bytes = 0;
  uint64_t host_gather_out_bytes = 0;
  uint64_t host_exchange_in_bytes = 0;
  uint64_t host_exchange_out_bytes = 0;
};

}  // namespace terrace
