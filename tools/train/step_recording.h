// StepRecording: records the events of chosen steps for `terrace train`, as a file (--trace) and as a picture
// of a step for the page of --report. A trace that can no longer be written is a warning, because training
// goes on as well without it.
//
// Several ranks record the same steps, each in a file FILE.rank-R. When all are complete, the first rank
// makes FILE of them and removes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/offload/watch/step_events.h>
#include <terrace/runtime/observe/log/step_log.h>
#include <terrace/runtime/observe/page/picture_taker.h>
#include <terrace/runtime/observe/trace/trace_file.h>

#include "flags/train_flags.h"

namespace terrace {

struct StepRange {
  uint64_t first = 0;
  uint64_t last = 0;
};
// Parses "3-5", "3-" (to the end) or "3". Throws Error(config) if it is no range, or begins after `steps`.
StepRange parse_step_range(const std::string& text, uint64_t steps);
// Returns three steps of a run that goes on after `completed` of `steps`. If the run is long enough, some
// steps come before the first of them.
StepRange default_step_range(uint64_t completed, uint64_t steps);

class StepRecording final : public RunObserver {
 public:
  // Throws Error(config) for flags that are wrong. Without --trace and --report it does nothing.
  StepRecording(const TrainFlags& flags, Log& log);
  ~StepRecording() override;
  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;

  // Returns null if nothing is recorded.
  StepEvents* events() { return events_.get(); }
  // The run goes on from where `trainer` stands; `trainer` outlives the recording's calls, and so does `log`,
  // which gets the pictures. `ranks`, null where there is one, are those that record, and all of them do.
  void begin(Trainer& trainer, StepLog& log, Communicator* ranks);
  // Takes out the recorded events, and ends the trace if no more can come.
  void step_done(const StepReport& report) override;
  void ended(const RunEnd& end) override;

 private:
  std::unique_ptr<TraceFile> make_file() const;
  std::filesystem::path part_of(uint32_t rank) const;
  void take();
  void tell(const std::optional<StepPicture>& picture);
  void finish_file();
  void join_parts(bool all_have_ended);
  void choose_next(uint64_t step);
  void give_up(const Error& unwritten);

  Log& log_;
  const SteadyClock clock_;
  const uint64_t steps_;     // steps of the whole run
  const std::string trace_;  // the file
  const bool has_trace_;
  const bool has_page_;
  Trainer* trainer_ = nullptr;
  StepLog* steps_log_ = nullptr;
  Communicator* ranks_ = nullptr;
  uint32_t complete_parts_ = 0;  // of the first ranks, which the first one has seen
  bool joins_parts_ = false;     // it still has to
  uint64_t completed_ = 0;       // completed steps when this run began
  std::optional<StepRange> wanted_;
  std::unique_ptr<StepEvents> events_;
  std::unique_ptr<TraceFile> file_;
  std::optional<PictureTaker> taker_;  // set if there is a page
};

}  // namespace terrace
