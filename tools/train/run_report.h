// RunReport: writes the page of `terrace train --report` (runtime/observe/page): it feeds the record, asks
// the trainer for its memory, and keeps the page current. If the page can no longer be written, it warns and
// the run goes on.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/observe/page/least_traffic.h>
#include <terrace/runtime/observe/page/report_file.h>
#include <terrace/runtime/observe/page/run_record.h>
#include <terrace/runtime/train/trainer.h>

#include "console.h"
#include "train/step_recording.h"

namespace terrace {

class RunReport final : public RunObserver {
 public:
  // Without a path it keeps nothing and writes nothing. From here on it gets a copy of the console's
  // warnings.
  RunReport(const std::string& path, Console& console);
  ~RunReport() override;
  RunReport(const RunReport&) = delete;
  RunReport& operator=(const RunReport&) = delete;

  // Writes the page for the first time. Throws Error(io), so that a page that cannot be written is known
  // before anything is trained.
  void begin(const TrainerOptions& options, const TrainerPlan& plan, std::vector<ReportFact> facts,
             double unigram_loss, const std::optional<PlanPrediction>& prediction);
  // From here on the report asks `trainer`, whose plan is `plan`, for its memory, and `recording`, which
  // observes the run before the report does, for pictures. All outlive the report's calls.
  void attach(Trainer& trainer, const TrainerPlan& plan, StepRecording& recording);

  void step_done(const StepReport& report) override;
  void update_finished(const FinishedUpdate& update) override;
  void evaluated(uint64_t step, double loss) override;
  void state_kept(const KeptState& kept) override;
  // Writes the last page, unless there was no first one.
  void ended(const RunEnd& end) override;
  // Writes the last page of a run whose trainer is gone or was never made.
  void give_up(const Error& failure);

 private:
  void take_picture();
  void end(RunState state, const Error* error);
  void write();

  Console& console_;
  const SteadyClock clock_;
  std::unique_ptr<ReportFile> file_;  // null if there is no report
  RunRecord record_;
  LeastTraffic least_;
  bool begun_ = false;
  Trainer* trainer_ = nullptr;
  const TrainerPlan* plan_ = nullptr;
  StepRecording* recording_ = nullptr;
};

}  // namespace terrace
