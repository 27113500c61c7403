// PlannedRun: a run of `terrace train` before there is a trainer. Everything is resolved, checked, agreed on
// with the other ranks and planned, in the order in which a user hears of it. What can be refused is refused
// here, and nothing is allocated.
#pragma once

#include <memory>
#include <optional>

#include <terrace/reference/data/training_data.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/observe/log/step_log.h>
#include <terrace/runtime/planning/prediction.h>
#include <terrace/runtime/ranks/nccl_exchange.h>
#include <terrace/runtime/ranks/run_ranks.h>

#include "console.h"
#include "flags/compute_choice.h"
#include "flags/data_flags.h"
#include "flags/train_flags.h"
#include "train/step_recording.h"
#include "train/train_faults.h"
#include "train/train_header.h"
#include "train/train_resume.h"

namespace terrace {

class PlannedRun {
 public:
  // Sets the steps of `flags` where --epochs says them. The ranks have joined. The log gets what `said` has.
  // All arguments outlive this.
  PlannedRun(TrainFlags& flags, const RunRanks& ranks, LogRecord& said, Console& console);
  PlannedRun(const PlannedRun&) = delete;
  PlannedRun& operator=(const PlannedRun&) = delete;

  const TrainerOptions& options() const { return options_; }
  const TrainerPlan& plan() const { return plan_; }
  const RunStart& start() const { return start_; }
  const TrainingData& data() const { return *data_; }
  const CheckpointFolder* save_folder() const { return saves_.folder.get(); }
  // Nothing where another rank predicts, or nobody can.
  std::optional<PlanPrediction> take_prediction() { return std::move(prediction_); }

  // Those who follow the run and may refuse it.
  InjectedFaults& faults() { return faults_; }
  StepRecording& recording() { return *recording_; }
  StepLog& log() { return *log_; }

  // Makes the trainer and takes up the state that the run goes on from. Once.
  std::unique_ptr<Trainer> make_trainer();

 private:
  void settle();
  void agree_on_training();
  void gather_by_nccl();
  void choose_where_to_begin();
  void make_plan();
  void open_files();
  const TrainingData& opened_data();

  TrainFlags& flags_;
  const RunRanks& ranks_;
  LogRecord& said_;
  Console& console_;
  InjectedFaults faults_;
  const DataChoice choice_;
  TrainerOptions options_;
  std::optional<TrainingData> data_;
  std::optional<ComputeChoice> compute_;
  std::optional<NcclExchange> nccl_;  // outlives whoever has options_.communicator
  std::optional<StepRecording> recording_;
  RunStart start_;
  std::optional<TrainingSetup> setup_;
  TrainerPlan plan_;
  SaveFolderOfRun saves_;
  std::optional<StepLog> log_;
  std::optional<PlanPrediction> prediction_;
};

}  // namespace terrace
