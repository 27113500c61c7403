// RunContext: the facts of a run that the parts of an Offloader share: the shapes, the options, the plan, and
// the providers of copies, threads and messages. It owns nothing; everything it refers to outlives its
// holders.
#pragma once

#include <terrace/base/clock.h>
#include <terrace/base/log.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/watch/step_watch.h>
#include <terrace/offload/watch/time_account.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

struct RunContext {
  const FlatSpace& space;
  const ChunkShards& shards;  // of the space
  const OffloadOptions& options;
  const MemoryPlan& plan;
  Device& device;
  Workers& workers;
  const Clock& clock;    // OffloadHooks::clock, or the steady one
  TimeAccount& account;  // of the step thread
  StepWatch& watch;
  Log& log;
  InstructionSet instruction_set;

  bool is_trained(ChunkId chunk) const { return space.section_of(chunk).trainable; }
  // True if the chunk's parameters lie in memory of the program.
  bool is_callers(ChunkId chunk) const { return space.section_of(chunk).home == TensorHome::caller; }
  // True if a record holds only the bits of the master that the parameter does not, if any.
  bool is_compact() const { return plan.record_layout.master != MasterForm::whole; }
  // Whether records of checkpoints and exports are others than those that are kept.
  bool converts_records() const { return !plan.record_layout.is_canonical(); }
  // True if the device has all parameters at all times, each in its slot.
  bool params_stay_on_device() const { return has_all_on_device(options); }
  // True if parameters have a home below the device.
  bool params_live_below() const { return options.parameters != Placement::none; }
};

}  // namespace terrace
