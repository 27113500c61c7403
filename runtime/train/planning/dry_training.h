// DryTraining: the steps of a run, planned. The model runs dry on the real Offloader, which runs dry too
// (OffloadOptions::dry), so that everything the run will decide is decided here by the same code. No memory
// is taken, no file made and nothing computed.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/base/workers.h>
#include <terrace/offload/dry/dry_device.h>
#include <terrace/offload/dry/step_record.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/model/compute/ops.h>
#include <terrace/runtime/train/planning/prediction.h>
#include <terrace/runtime/train/setup/training_setup.h>

namespace terrace {

class DryTraining {
 public:
  // `setup` is complete and outlives this, as `workers` do. `mode` is possible (Offloader::why_not).
  DryTraining(const TrainConfig& config, const TrainingSetup& setup, UpdateMode mode, Workers& workers);

  // One more step: what it moves and counts. Times mean nothing.
  OffloadCounters step();
  // What happened since the last call. Engines are numbered as OffloadHooks::decorate_engine has them.
  std::deque<RecordedEvent> take_record() { return record_.take(); }
  // Where nobody asks for what happens from now on.
  void stop_recording() { record_.stop(); }
  // In which chunks were updated by the last update that was finished.
  std::vector<ChunkId> update_order();
  // What a commit between two steps moves; where commits are kept (Commits::are_kept).
  OffloadCounters commit();
  Offloader& offloader() { return offloader_; }
  // What every tier holds at its peak, by what for.
  std::vector<PredictedTier> tiers() const;

 private:
  void run_micro_batch(uint32_t micro_batch);
  void run_together();

  const TrainConfig& config_;
  const TrainingSetup& setup_;
  MemoryLog log_;
  StepRecord record_;
  const std::unique_ptr<const Ops> ops_;
  FlatSpace space_;
  DryDevice device_;
  Offloader offloader_;
  StackArena arena_;
  std::vector<OptimizerSettings> groups_;
  double loss_scale_ = 1;
  uint64_t steps_ = 0;
  uint32_t uses_ = 0;  // of this step, until now
};

// Whether two steps move and count the same.
bool moves_the_same(const OffloadCounters& one, const OffloadCounters& other);

// What device memory is used for.
std::vector<TierUse> device_ledger(const MemoryPlan& plan);

}  // namespace terrace
