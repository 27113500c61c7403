// PictureTaker picks from the recorded events the steps that a page pictures. It makes a picture when the
// step's last transfer has ended: with the step after it, or at the end of the run. It holds the events of
// two steps at most, and counts those that it has no room for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <terrace/offload/watch/step_events.h>
#include <terrace/runtime/observe/page/step_picture.h>

namespace terrace {

class PictureTaker {
 public:
  // `before` is the step before the first recorded one.
  PictureTaker(uint64_t before, size_t room) : before_(before), room_(room) {}

  // Adds the events in the order in which the recorder gives them.
  void add(const TraceEvent& event);
  // Call when all events until the end of this step have been added. Returns a picture when one is complete.
  std::optional<StepPicture> step_done(uint64_t step, const StepEvents& recorder);
  // Call when no more events come.
  std::optional<StepPicture> finish(const StepEvents& recorder);

 private:
  std::optional<StepPicture> make(const StepEvents& recorder);

  const uint64_t before_;
  const size_t room_;
  std::vector<TraceEvent> events_;
  uint64_t left_out_ = 0;
  uint64_t recorder_left_out_ = 0;   // of all steps before the open one
  std::optional<uint64_t> pending_;  // the step that awaits its picture
};

}  // namespace terrace
