// MicroBatches runs the micro-batches of this rank in a step forward and backward, one after the other or
// together layer by layer, and those of an evaluation forward. In a round without a micro-batch of its own a
// rank goes through the same leases and computes nothing. It must never change a weight or know what an
// update is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/host/stack_arena.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/watch/watched_votes.h>
#include <terrace/reference/data/training_data.h>
#include <terrace/reference/model/transformer/model.h>
#include <terrace/reference/pass_timer.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// The operations of a step, and those that take their part and compute nothing.
struct StepOps {
  const Ops& computing;
  const Ops& dry;
};

class MicroBatches {
 public:
  struct Result {
    double loss = 0;  // the mean over the tokens of all micro-batches of all ranks, unscaled
    uint64_t samples = 0;
    uint64_t tokens = 0;
    uint64_t forward_ns = 0;  // time of all of them until backward first asks for parameters
  };

  // All references outlive this. Samples are as long as the context of the model.
  MicroBatches(const Model& model, const TrainingData& data, const StepOps& ops, Offloader& offloader,
               const BatchConfig& batch, const WatchedVotes& ranks, const Clock& clock);
  MicroBatches(const MicroBatches&) = delete;
  MicroBatches& operator=(const MicroBatches&) = delete;

  // Runs the micro-batches of a step, which begins with sample number `first_sample`. Gradients are those of
  // `loss_scale` times the mean loss. `before_last` is called before the last micro-batch, or before all of
  // them if they run together.
  Result run(uint64_t first_sample, float loss_scale, FunctionRef<void()> before_last);
  // The compute time of each use of the last run.
  const std::vector<uint64_t>& use_ns() const { return use_ns_; }

  // Returns the sum of the mean losses of micro-batches `first` and after, one for every rank, of `runs` that
  // are spread over the validation part.
  double evaluate(uint64_t first, uint64_t runs);

 private:
  void run_in_turn(uint64_t first_sample, PassTimer& timed, float scale, FunctionRef<void()> before_last);
  void run_together(uint64_t first_sample, PassTimer& timed, float scale);
  // The first sample of the rank's micro-batch in a round.
  uint64_t sample_of(uint64_t first_sample, uint32_t round) const;
  double sum_of_losses() const;

  const Model& model_;
  const TrainingData& data_;
  const StepOps ops_;
  Offloader& offloader_;
  const BatchConfig batch_;
  const WatchedVotes& ranks_;
  const Clock& clock_;
  StackArena arena_;
  std::vector<int32_t> tokens_;  // of one micro-batch, or of all that run together
  std::vector<int32_t> targets_;
  std::vector<std::string> prefixes_;
  std::vector<MicroBatchRun> runs_;  // views of the three above
  std::vector<double> losses_;       // by round
  std::vector<uint64_t> use_ns_;
};

}  // namespace terrace
