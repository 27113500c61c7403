// StepRecording: what `terrace train` records of chosen steps, and the file that it becomes (--trace). A
// trace that cannot be written when training goes on is a warning: the training is as good without it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>
#include <terrace/offload/trace/step_events.h>
#include <terrace/runtime/trace_file.h>

#include "train_flags.h"

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

class StepRecording {
 public:
  // Throws Error(config) for flags that are wrong and for a file that cannot be made. Without --trace it does
  // nothing at all.
  StepRecording(const TrainFlags& flags, Log& log);
  ~StepRecording();
  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;

  // Null where nothing is recorded.
  StepEvents* events() { return events_.get(); }
  // The run is made: its first step is `completed` + 1.
  void begin(uint64_t completed, std::string description);
  // Between two steps: takes out what was recorded, and ends the trace when nothing more can come. A commit
  // that is still `committing` may have begun in a recorded step.
  void step_done(uint64_t step, bool committing);
  // The run is over, or has failed.
  void finish();

 private:
  void take();
  void give_up(const Error& unwritten);

  Log& log_;
  const SteadyClock clock_;
  const uint64_t steps_;  // of the whole run
  std::optional<StepRange> wanted_;
  std::unique_ptr<StepEvents> events_;
  std::unique_ptr<TraceFile> file_;
  std::string description_;
};

}  // namespace terrace
