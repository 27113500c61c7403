// DryTraining plans the steps of a run. The model runs dry on the real Offloader, which runs dry too
// (OffloadOptions::dry), so that the same code decides here everything that the run will decide. It takes no
// memory, makes no file and computes nothing.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>
#include <terrace/base/workers.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/offload/dry/dry_device.h>
#include <terrace/offload/dry/step_record.h>
#include <terrace/offload/offloader.h>
#include <terrace/reference/model/compute/ops.h>
#include <terrace/reference/setup/training_setup.h>
#include <terrace/runtime/planning/prediction.h>

namespace terrace {

class DryTraining {
 public:
  // `setup` is complete; it and `workers` outlive this. `mode` is possible (Offloader::why_not).
  DryTraining(const TrainConfig& config, const TrainingSetup& setup, UpdateMode mode, Workers& workers);

  // Plans one more step and returns the bytes that it moves and its counts. Times mean nothing.
  OffloadCounters step();
  // Returns the events since the last call. Engines are numbered as OffloadHooks::decorate_engine numbers
  // them.
  std::deque<RecordedEvent> take_record() { return record_.take(); }
  // Call if no later event is needed.
  void stop_recording() { record_.stop(); }
  // Returns the chunks in the order in which the last finished update updated them.
  std::vector<ChunkId> update_order();
  // Returns the bytes that a commit between two steps moves. Only if commits are kept (Commits::are_kept).
  OffloadCounters commit();
  Offloader& offloader() { return offloader_; }
  // Returns the peak of every tier, by use.
  std::vector<PredictedTier> tiers() const;

 private:
  void run_micro_batch(uint32_t micro_batch);
  void run_together();
  // `announced`: the update that follows may be told beforehand; null: it may not.
  void run_stage(const UpdateSettings* announced);

  const TrainConfig& config_;
  const TrainingSetup& setup_;
  MemoryLog log_;
  // Stands still: nothing that is planned takes time, or depends on how busy this machine is.
  const FakeClock clock_;
  StepRecord record_;
  const std::unique_ptr<Communicator> ranks_;  // null: there is one rank
  const std::unique_ptr<const Ops> ops_;
  FlatSpace space_;
  DryDevice device_;
  Offloader offloader_;
  StackArena arena_;
  std::vector<OptimizerSettings> groups_;
  double loss_scale_ = 1;
  uint64_t steps_ = 0;
  uint32_t uses_ = 0;  // uses of this step so far
};

// True if two steps move and count the same.
bool moves_the_same(const OffloadCounters& one, const OffloadCounters& other);

}  // namespace terrace
