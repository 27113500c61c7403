// What an embedding program decides about a run. Everything else follows from the plan.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/memory/space/eviction_policy.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/memory/tier/tier_start.h>
#include <terrace/offload/options/offload_hooks.h>
#include <terrace/offload/options/placement.h>
#include <terrace/offload/options/update_rates.h>
#include <terrace/offload/transfer/drive_turns.h>

namespace terrace {

struct OffloadOptions {
  Placement parameters = Placement::none;
  Placement states = Placement::none;
  std::vector<TierPath> parameter_paths;  // existing folders; used when parameters are on nvme
  std::vector<TierPath> state_paths;      // the same for states

  // Commits (Commits::begin): every write of a record goes to a free slot, and the last commit stays
  // whole whatever happens. Takes twice the disk for records. Without effect where no commit is
  // possible (Commits::why_not_kept).
  bool durable = false;
  uint32_t retained_epochs = 0;  // commits that stay beside the last one; each takes room for all records
  // resume: go on from the last commit in the tier folders; then chunk_elements of the space is that of the
  // commit. fresh: what no commit needs is removed, and a commit is refused unless `discard_epochs`; then it
  // goes with the first commit where the new state has room beside it (Commits::earlier_stays), else
  // at once.
  TierStart tier_start = TierStart::fresh;
  bool discard_epochs = false;

  RecordLayout record_layout;  // of the optimizer states
  // Of the trained elements whose states live below the device: what the processor updates, 0 to 1. The rest
  // is updated on the device, through which records and gradients pass meanwhile (update_side.h).
  double processor_share = 1;
  // Given, it decides that chunk by chunk instead: to the side that is done with a chunk first.
  std::optional<UpdateRates> update_rates;

  uint64_t device_budget_bytes = 0;  // parameters, gradients, states placed there, and work memory
  // Of the device's memory, a power of two: chunks of parameters must be multiples of it, and all else there
  // is rounded up to it. 1: pages, to which every plan keeps.
  uint64_t device_granularity_bytes = 1;
  uint64_t host_budget_bytes = 0;  // everything in the host arena, I/O buffers included
  uint64_t work_bytes = 0;         // device memory for activations and workspaces
  // Checkpointed activations of a micro-batch that leave the work memory; none: they stay in it.
  uint32_t activation_entries = 0;
  uint64_t activation_entry_bytes = 0;  // of the largest
  // The lowest tier that they go to. nvme: the host keeps what it has room for; parameters or states are
  // there too.
  Placement activations = Placement::cpu;
  bool activations_fill_device = false;        // the device keeps what it has room for
  std::vector<uint32_t> activation_get_order;  // in which they come back, each once; of nvme only
  bool lock_host_memory = true;                // page-lock the host arena where the system allows it

  uint32_t accumulation_steps = 1;  // micro-batches per update; above 1 gradients accumulate
  // All micro-batches of a step are open together, so that each operation can run for all of them before the
  // next one and its parameters come once. Their gradients are added in the same order: no bit depends on it.
  bool layer_major = false;
  // No gradient is spilled to nvme: host memory without room for all of them is too little
  // (mode_holds_gradients).
  bool holds_gradients = false;
  // In what they accumulate: fp32, or the parameters' own type, which takes less memory and rounds every sum.
  DataType accumulation_type = DataType::fp32;
  PolicyKind policy = PolicyKind::opt;
  uint32_t prefetch_uses = 16;  // how many uses ahead to fetch at most; 0 fetches on demand only
  uint64_t prefetch_elements = std::numeric_limits<uint64_t>::max();  // and how many elements at most

  // Parameters on nvme that have no place in host memory are read by the device itself
  // (Device::make_file_reader), through no slot there. Nobody compares them with their checksums, so it goes
  // with verify_checksums = false only.
  bool reads_past_host = false;

  io::EngineOptions io;
  bool verify_checksums = true;
  // Updates that stream take turns on the drives of state_paths with those of other processes of this user;
  // nothing: they do not, and no lock files are made.
  std::optional<DriveTurnOptions> drive_turns;
  // Plan only: every decision is made and every byte counted as in a run, with a DryDevice, addresses without
  // memory, files that are not made and arithmetic that is left out. Nothing it answers about the weights,
  // norms included, means anything. Starts fresh.
  bool dry = false;
  OffloadHooks hooks;
};

// Of what only passes through nvme and is never part of a commit: the paths of the states, or those of the
// parameters where only these are there.
inline const std::vector<TierPath>& passing_paths(const OffloadOptions& options) {
  return options.states == Placement::nvme ? options.state_paths : options.parameter_paths;
}

// Whether a gradient that is complete stays in its device slot until the update.
inline bool gradients_stay(const OffloadOptions& options) {
  return options.states == Placement::none && options.accumulation_steps == 1;
}

}  // namespace terrace
