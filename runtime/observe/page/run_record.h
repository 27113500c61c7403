// RunRecord: a run as the log of its steps tells it (docs/steps_jsonl.md), for its page and its report. It is
// bounded: its size does not grow with the steps. It must never observe anything itself: it reads lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/runtime/observe/log/log_lines.h>
#include <terrace/runtime/observe/log/log_record.h>
#include <terrace/runtime/observe/page/step_series.h>
#include <terrace/runtime/observe/page/thinned.h>

namespace terrace {

// The steps that the prediction is about: those that repeat and update in the predicted mode.
struct PredictedPart {
  static constexpr size_t kMostTimes = 4096;  // the median is taken of at most so many times

  uint64_t steps = 0;
  uint64_t of_other_modes = 0;  // steps that update in another mode
  OffloadCounters moved;
  std::vector<double> seconds;  // without keeping the state

  double median_seconds() const;
};

enum class RunState : uint8_t {
  starting,  // nothing is trained yet
  running,   // or ended from outside
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
      : series_(points), evaluations_(kMarks), commits_(kMarks), checkpoints_(kMarks) {}

  // Takes the next line of a log. A line "start" begins a record of its own. Ignores what is no line of a
  // log, as a run leaves it that is killed, and events that it does not know. Throws Error(corrupt) for a
  // line with a member that is missing or of another type.
  void add(std::string_view line);

  const RunHeader& header() const { return header_; }
  bool has_begun() const { return has_begun_; }  // with a line "start"
  const RunMemory& memory() const { return memory_; }
  RunState state() const { return state_; }
  const std::string& stopped_by() const { return stopped_by_; }  // "SIGINT", or what failed
  const std::string& state_text() const { return state_text_; }
  uint64_t completed_steps() const { return completed_steps_; }
  const StepSeries& series() const { return series_; }
  // Returns the sum of all steps, without rest().
  const StepPoint& all() const { return all_; }
  const std::optional<StepReport>& last_step() const { return last_step_; }
  // Of the update that was pending after the last step.
  const FinishedUpdate& rest() const { return rest_; }
  OffloadCounters moved() const { return all_.moved + rest_.moved; }
  const PredictedPart& predicted() const { return predicted_; }
  const Thinned<EvaluationMark>& evaluations() const { return evaluations_; }
  const Thinned<uint64_t>& commits() const { return commits_; }
  const Thinned<CheckpointMark>& checkpoints() const { return checkpoints_; }
  const std::optional<EvaluationMark>& last_evaluation() const { return last_evaluation_; }
  // The commit that nvme has now.
  std::optional<uint64_t> commit_step() const { return commit_step_; }
  const std::string& last_checkpoint() const { return last_checkpoint_; }  // its folder; empty: none
  const std::string& picture() const { return picture_; }  // of the last recorded step, as JSON; empty: none
  const std::vector<LoggedLine>& said() const { return said_; }
  uint64_t said_and_left_out() const { return left_out_; }

 private:
  using Reading = bool (RunRecord::*)(const JsonNode& line);
  struct Event;
  static const Event kEvents[];

  bool start(const JsonNode& line);
  bool step(const JsonNode& line);
  bool update(const JsonNode& line);
  bool evaluation(const JsonNode& line);
  bool commit(const JsonNode& line);
  bool commits_removed(const JsonNode& line);
  bool checkpoint(const JsonNode& line);
  bool memory(const JsonNode& line);
  bool picture(const JsonNode& line);
  bool warning(const JsonNode& line);
  bool end(const JsonNode& line);
  bool failed(const JsonNode& line);
  void count_predicted(const StepReport& report);

  RunHeader header_;
  bool has_begun_ = false;
  RunMemory memory_;
  StepSeries series_;
  StepPoint all_;
  std::optional<StepReport> last_step_;
  FinishedUpdate rest_;
  PredictedPart predicted_;
  Thinned<EvaluationMark> evaluations_;
  Thinned<uint64_t> commits_;
  Thinned<CheckpointMark> checkpoints_;
  std::optional<EvaluationMark> last_evaluation_;
  std::optional<uint64_t> commit_step_;
  std::string last_checkpoint_;
  std::string picture_;
  std::vector<LoggedLine> said_;
  uint64_t left_out_ = 0;
  uint64_t completed_steps_ = 0;
  RunState state_ = RunState::starting;
  std::string stopped_by_;
  std::string state_text_;
};

// Reads a log of steps, of which the record is of the last run. Throws Error(io), Error(config) if the file
// is no such log, and Error(corrupt) with the number of the line.
RunRecord read_run(const std::filesystem::path& log);

}  // namespace terrace
