// RunRecord: the facts and events of a run of `terrace train` that its page shows (docs/run_report.md). It is
// bounded: its size does not grow with the steps. It must never observe anything itself: others give it
// everything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/observe/log/log_record.h>
#include <terrace/runtime/observe/page/step_picture.h>
#include <terrace/runtime/observe/page/step_series.h>
#include <terrace/runtime/observe/page/thinned.h>
#include <terrace/runtime/observe/run_reports.h>
#include <terrace/runtime/planning/prediction.h>

namespace terrace {

// A line about a run or a machine; without a name it continues the line before.
struct ReportFact {
  std::string name;
  std::string text;
  bool is_detail = false;  // a detail of how it is done
};

// The facts known before the first step.
struct RunHeader {
  std::string version;
  std::string model;
  uint64_t parameter_count = 0;
  uint64_t planned_steps = 0;    // steps of the whole run
  uint64_t resumed_at_step = 0;  // completed steps when this run began
  double unigram_loss = 0;       // of the data
  int64_t started_at = 0;        // seconds since 1970
  std::vector<ReportFact> facts;
  std::vector<ReportFact> machine;
  std::vector<ResolvedValue> configuration;
  std::optional<PlanPrediction> prediction;
};

struct TierSummary {
  std::string name;           // "device"
  uint64_t budget_bytes = 0;  // 0: bounded by the drive alone
  std::string origin;         // origin of the budget
  uint64_t planned_bytes = 0;
  uint64_t peak_bytes = 0;
  std::vector<TierUse> uses;  // the uses of the peak
};

// The latest values that can be read at any moment.
struct RunMemory {
  std::vector<TierSummary> tiers;
  std::vector<NvmePathUse> paths;
  TrafficBound bound;          // mean of one step (LeastTraffic)
  uint64_t process_bytes = 0;  // the highest process size that the system reported (Pss)
};

// Whether the prediction is about the step that is the `nth` of its run, from 1: a step that repeats and
// updates in the predicted mode.
bool is_predicted(const PlanPrediction& prediction, uint64_t nth, const StepReport& report);

// The sum of the steps that the prediction is about.
struct PredictedPart {
  uint64_t steps = 0;
  uint64_t of_other_modes = 0;  // steps that update in another mode
  OffloadCounters moved;
};

enum class RunState : uint8_t {
  starting,  // nothing is trained yet
  running,
  complete,
  stopped,  // on request
  failed,
};
// Returns the key for programs: "complete".
std::string_view key_of(RunState state);

struct EvaluationMark {
  uint64_t step = 0;
  double loss = 0;
};
struct CommitMark {
  uint64_t step = 0;
};
struct CheckpointMark {
  uint64_t step = 0;
  std::string folder;
};

class RunRecord {
 public:
  static constexpr size_t kPoints = 1024;
  static constexpr size_t kMarks = 512;
  static constexpr size_t kLogLines = 300;

  RunRecord() : RunRecord(kPoints) {}
  explicit RunRecord(size_t points)
      : series_(points), evaluations_(kMarks), commits_(kMarks), checkpoints_(kMarks), log_(kLogLines) {}

  RunHeader header;
  RunMemory memory;
  std::optional<StepPicture> picture;  // of the last recorded step

  // --- Events, in their order ---
  void step(const StepReport& report);
  // Adds the update that was pending after the last step.
  void finished(const FinishedUpdate& update);
  void evaluation(uint64_t step, double loss) { evaluations_.add({step, loss}); }
  void commit(uint64_t step) { commits_.add({step}); }
  void checkpoint(uint64_t step, const std::string& folder) { checkpoints_.add({step, folder}); }
  // `text` says why the run stopped or failed.
  void set_state(RunState state, std::string text);
  // Thread-safe.
  LogRecord& log() { return log_; }

  RunState state() const { return state_; }
  const std::string& state_text() const { return state_text_; }
  const StepSeries& series() const { return series_; }
  // Returns the sum of all steps, without finished().
  const StepPoint& all() const { return all_; }
  const std::optional<StepReport>& last_step() const { return last_step_; }
  const FinishedUpdate& rest() const { return rest_; }
  const PredictedPart& predicted() const { return predicted_; }
  const Thinned<EvaluationMark>& evaluations() const { return evaluations_; }
  const Thinned<CommitMark>& commits() const { return commits_; }
  const Thinned<CheckpointMark>& checkpoints() const { return checkpoints_; }
  const LogRecord& log() const { return log_; }

 private:
  StepSeries series_;
  StepPoint all_;
  std::optional<StepReport> last_step_;
  FinishedUpdate rest_;
  PredictedPart predicted_;
  Thinned<EvaluationMark> evaluations_;
  Thinned<CommitMark> commits_;
  Thinned<CheckpointMark> checkpoints_;
  LogRecord log_;
  RunState state_ = RunState::starting;
  std::string state_text_;
};

}  // namespace terrace
