// RunReport: what `terrace train --report` writes of a run (runtime/observe/page): it feeds the record, asks
// the trainer for what only it knows, and keeps the page current. A page that cannot be written any more is a
// warning, and the run goes on.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/page/least_traffic.h>
#include <terrace/runtime/observe/page/report_file.h>
#include <terrace/runtime/observe/page/run_record.h>
#include <terrace/runtime/train/trainer.h>

#include "console.h"

namespace terrace {

class RunReport {
 public:
  // Without a path it keeps nothing and writes nothing. From here on it has the console's warnings.
  RunReport(const std::string& path, Console& console);
  ~RunReport();
  RunReport(const RunReport&) = delete;
  RunReport& operator=(const RunReport&) = delete;

  // Writes the page for the first time. Throws Error(io): before anything is trained it is known whether it
  // can be written.
  void begin(const TrainerOptions& options, const TrainerPlan& plan, std::vector<ReportFact> facts,
             double unigram_loss, const std::optional<PlanPrediction>& prediction);
  // From here on it asks `trainer` of `plan`, which outlive it.
  void attach(Trainer& trainer, const TrainerPlan& plan);

  void step(const StepReport& report);
  void finished(const FinishedUpdate& update);
  void evaluation(uint64_t step, double loss);
  void kept(const KeptState& kept);
  void picture(std::optional<StepPicture> picture);
  // The last page, unless there was no first: of a run that was to be stopped, that failed, or that came to
  // its end.
  void end(const std::optional<Error>& failure, bool was_to_stop);
  // The same where the trainer is gone, or was never made.
  void give_up(const Error& failure);

 private:
  void write();

  Console& console_;
  const SteadyClock clock_;
  std::unique_ptr<ReportFile> file_;  // null where there is no report
  RunRecord record_;
  LeastTraffic least_;
  bool begun_ = false;
  Trainer* trainer_ = nullptr;
  const TrainerPlan* plan_ = nullptr;
};

}  // namespace terrace
