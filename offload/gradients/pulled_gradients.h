// PulledGradients: gradients of a step on their way to their owners, where ranks pull. This rank keeps each
// part that it has made in its staging, and says so; the owner takes it when those of earlier micro-batches
// have been added or are absent, and adds it as one rank would. The end of a micro-batch says that what it
// did not hand over is absent.
//
// A thread of its own adds, whatever the step thread waits for: else two ranks whose stagings are full could
// wait for each other's owner. A part waits for parts of earlier micro-batches alone, so the oldest
// micro-batch that is not over never waits, in whichever order each rank hands over.
//
// The step thread uses it, and reads the gradients between finish() and allow_step().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <terrace/base/mutex.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/gradients/gradient_place.h>
#include <terrace/offload/gradients/part_ledger.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/landing/gradient_sums.h>
#include <terrace/offload/landing/handed_part.h>
#include <terrace/offload/landing/rank_parts.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/pull/rank_pulls.h>
#include <terrace/offload/transfer/device_copy.h>

namespace terrace {

class PulledGradients final : public PartListener {
 public:
  // All references outlive this.
  struct Parts {
    const RunContext& run;
    DeviceCache& cache;
    RankPulls& pulls;
    std::vector<std::byte*> staging;   // each has room for a chunk's gradient
    std::vector<std::byte*> incoming;  // each has room for that of a share
  };
  // Where gradients are added, which belongs to the thread of this class from allow_step() on.
  struct Places {
    GradientSums& sums;
    std::function<GradientPlace&(ChunkId)> of;
    std::function<void()> finish;  // all of a step has been added
  };
  PulledGradients(Parts parts, Places places);
  // Where a step is open the ranks were left before.
  ~PulledGradients() override;

  // A step that is begun again had nothing to say to the others.
  void begin_step();
  // The gradients of a step may be added once it is allowed: the one that has begun, else the next.
  void allow_step();
  // As those of GradientStaging. They wait while the staging is full.
  void land(const GradientLanding& landing);
  void land_part(const GradientLanding& landing, const HandedPart& part);
  // Ends the micro-batch, and with the step's last one waits until all of the step has been added.
  void end_micro_batch(bool ends_step);
  // Ends the step's micro-batches that are left, without gradients.
  void give_up();

  RankBytes moved() const;
  uint64_t d2h_bytes() const { return d2h_bytes_; }

  void hear(const HandedOver& part) override;
  void lost(const std::exception_ptr& failure) override;

 private:
  struct Slot {
    std::byte* memory = nullptr;
    DeviceCopy copied;  // out of the device
    DeviceCopy taken;   // by all owners
  };
  // A part that is on its way to its addition.
  struct Claim {
    std::byte* memory = nullptr;
    uint64_t first_element = 0;
    GradientLanding landing;
    std::vector<GradientRun> runs;
    Event arrived;
  };
  bool has_data() const { return rounds_.has(round_, shards_.rank()); }
  Slot& take_slot();
  void offer(const GradientLanding& landing, Slot& slot, const Event* after);
  void say_end();
  void wait_for_step();

  void work();
  bool wait_for_work();
  void sort_in();
  void claim();
  void add_oldest();
  void finish_step();
  bool is_over() const;
  void fail(const std::exception_ptr& failure);

  const RunContext& run_;
  const ChunkShards& shards_;
  const StepRounds rounds_;
  DeviceCache& cache_;
  RankPulls& pulls_;
  const Places places_;

  // The step thread's.
  const std::unique_ptr<Slot[]> slots_;
  const size_t slot_count_;
  size_t next_slot_ = 0;
  uint32_t round_ = 0;
  uint64_t step_ = 0;  // counts from 1
  bool has_begun_ = false;
  uint64_t out_bytes_ = 0;
  uint64_t d2h_bytes_ = 0;

  Mutex mutex_;
  std::condition_variable_any called_;
  std::vector<HandedOver> inbox_ TERRACE_GUARDED_BY(mutex_);
  uint64_t begun_step_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t allowed_step_ TERRACE_GUARDED_BY(mutex_) = 1;
  std::exception_ptr lost_ TERRACE_GUARDED_BY(mutex_);
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  DeviceCopy added_;  // all of the step
  std::atomic<uint64_t> in_bytes_{0};

  // The thread's own.
  PartLedger ledger_;
  uint64_t adding_step_ = 1;
  bool is_open_ = false;             // adding_step_ is begun and allowed
  std::vector<HandedOver> heard_;    // of the inbox
  std::vector<HandedOver> pending_;  // not due, or without memory
  std::vector<OwnPart> parts_;       // of pending_
  std::vector<GradientRun> rest_;    // of finish_step()
  std::vector<std::byte*> free_;
  const std::unique_ptr<Claim[]> claims_;  // a ring, by place
  const size_t claim_count_;
  size_t oldest_claim_ = 0, claimed_ = 0;
  bool has_failed_ = false;
  std::thread thread_;
};

}  // namespace terrace
