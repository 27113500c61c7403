// PictureTaker: of the events that are recorded, picks the steps of which a page has a picture, and makes it
// when the step's last transfer has ended: with the step after it, or at the end of the run. It has the
// events of two steps at most, and counts what it has no room for.
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
  // `before`: the step before the first one that is recorded.
  PictureTaker(uint64_t before, size_t room) : before_(before), room_(room) {}

  // As they are taken out of the recorder.
  void add(const TraceEvent& event);
  // All that was recorded until the end of this step was added. A picture, when one is complete.
  std::optional<StepPicture> step_done(uint64_t step, const StepEvents& recorder);
  // Nothing more comes.
  std::optional<StepPicture> finish(const StepEvents& recorder);

 private:
  std::optional<StepPicture> make(const StepEvents& recorder);

  const uint64_t before_;
  const size_t room_;
  std::vector<TraceEvent> events_;
  uint64_t left_out_ = 0;
  uint64_t recorder_left_out_ = 0;   // of all steps before the one that is open
  std::optional<uint64_t> pending_;  // of it there is to be a picture
};

}  // namespace terrace
