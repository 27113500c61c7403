// StepRecording: what `terrace train` records of chosen steps: the file that it becomes (--trace), and the
// picture of a step for the page of --report. A trace that cannot be written when training goes on is a
// warning: the training is as good without it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>
#include <terrace/offload/watch/step_events.h>
#include <terrace/runtime/observe/log/run_observer.h>
#include <terrace/runtime/observe/page/picture_taker.h>
#include <terrace/runtime/observe/trace/trace_file.h>

#include "flags/train_flags.h"

namespace terrace {

struct StepRange {
  uint64_t first = 0;
  uint64_t last = 0;
};
// "3-5", "3-" (to the end) or "3". Throws Error(config) where it is none, or begins after `steps`.
StepRange parse_step_range(const std::string& text, uint64_t steps);
// Of a run that goes on behind `completed` of `steps`: three steps, the first of which has others before it
// where the run is long enough.
StepRange default_step_range(uint64_t completed, uint64_t steps);

class StepRecording final : public RunObserver {
 public:
  // Throws Error(config) for flags that are wrong. Without --trace and --report it does nothing at all.
  StepRecording(const TrainFlags& flags, Log& log);
  ~StepRecording() override;
  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;

  // Null where nothing is recorded.
  StepEvents* events() { return events_.get(); }
  // `trainer` stands where the run goes on, and outlives the recording's calls.
  void begin(Trainer& trainer);
  // Takes out what was recorded, and ends the trace when nothing more can come.
  void step_done(const StepReport& report) override;
  void ended(const RunEnd& end) override;
  // The picture of the latest pictured step; empty where there is none since the last call.
  std::optional<StepPicture> take_picture() { return std::exchange(picture_, std::nullopt); }

 private:
  void take();
  void finish_file();
  void choose_next(uint64_t step);
  void give_up(const Error& unwritten);

  Log& log_;
  const SteadyClock clock_;
  const uint64_t steps_;     // of the whole run
  const std::string trace_;  // the file
  const bool has_trace_;
  const bool has_page_;
  Trainer* trainer_ = nullptr;
  uint64_t completed_ = 0;  // when the run began
  std::optional<StepRange> wanted_;
  std::unique_ptr<StepEvents> events_;
  std::unique_ptr<TraceFile> file_;
  std::optional<PictureTaker> taker_;  // where there is a page
  std::optional<StepPicture> picture_;
};

}  // namespace terrace
