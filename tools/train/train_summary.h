// RunSummary: the results of a run of `terrace train`, added up step by step, as aligned text and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/observe/page/least_traffic.h>
#include <terrace/runtime/observe/page/run_record.h>
#include <terrace/runtime/train/trainer.h>

#include "train/train_prediction.h"

namespace terrace {

struct RunSummary final : public RunObserver {
  std::string model;
  uint64_t parameter_count = 0;
  uint64_t planned_steps = 0;    // steps of the whole run
  uint64_t completed_steps = 0;  // steps of the whole run
  std::string stopped_by;        // "SIGINT"; empty if the run came to its end
  double unigram_loss = 0;
  std::optional<double> validation_loss;
  uint64_t validation_step = 0;  // the step of validation_loss
  std::string tokenizer;         // as the user named it, or the model's folder if that has one; else empty
  std::string checkpoint;        // the last one of this run; empty if there is none
  // These members are about commits of the nvme tier.
  std::optional<uint64_t> commit_step;  // the step of the commit that stays there
  std::string nvme_paths;
  bool keeps_commits = false;
  OffloadCounters commits;  // counters of the whole run, commits after its last step included

  // These members count the steps of this run.
  uint64_t steps = 0;
  uint64_t tokens = 0;
  uint64_t skipped_steps = 0;  // steps of this run that overflowed in fp16
  double last_loss = 0;
  uint64_t total_ns = 0;
  uint64_t forward_backward_ns = 0;
  uint64_t update_ns = 0;
  uint64_t keeping_ns = 0;  // time of commits and checkpoints between the steps
  OffloadCounters moved;

  PredictedSteps predicted;

  LeastTraffic least;
  TrafficBound bound;  // least traffic of one step, on average
  std::vector<TierSummary> tiers;
  std::vector<NvmePathUse> paths;
  uint64_t process_bytes = 0;  // the most that the system counted for this process (Pss)

  void step_done(const StepReport& report) override;
  void update_finished(const FinishedUpdate& last) override;
  void evaluated(uint64_t step, double loss) override;
  void state_kept(const KeptState& kept) override;
  void commits_removed() override { commit_step.reset(); }
  void ended(const RunEnd& end) override;
};

// Adds what is known of a run before it begins.
void add_run(RunSummary& summary, const TrainerOptions& options, const TrainerPlan& plan,
             std::string tokenizer);
// Adds the trainer's present memory, the bound, and the counters of commits.
void add_memory(RunSummary& summary, Trainer& trainer, const TrainerPlan& plan);

std::string summary_text(const RunSummary& summary, bool verbose);
// Returns one JSON object and a newline.
std::string summary_json(const RunSummary& summary);

}  // namespace terrace
