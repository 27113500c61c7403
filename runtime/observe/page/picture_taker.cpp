#include <terrace/runtime/observe/page/picture_taker.h>

#include <utility>

namespace terrace {

void PictureTaker::add(const TraceEvent& event) {
  if (events_.size() == room_) {
    ++left_out_;
    return;
  }
  if (events_.capacity() == 0) events_.reserve(room_);
  events_.push_back(event);
}

std::optional<StepPicture> PictureTaker::step_done(uint64_t step, const StepEvents& recorder) {
  std::optional<StepPicture> picture = make(recorder);
  if (is_pictured_step(before_, step)) {
    pending_ = step;
  } else {
    events_ = std::vector<TraceEvent>();  // no memory is held between the steps that are pictured
    left_out_ = 0;
    recorder_left_out_ = recorder.left_out();
  }
  return picture;
}

std::optional<StepPicture> PictureTaker::finish(const StepEvents& recorder) {
  return make(recorder);
}

std::optional<StepPicture> PictureTaker::make(const StepEvents& recorder) {
  if (!pending_) return std::nullopt;
  std::optional<StepPicture> picture =
      make_step_picture(events_, recorder.facts(), static_cast<uint32_t>(*std::exchange(pending_, {})));
  if (picture) picture->left_out = left_out_ + (recorder.left_out() - recorder_left_out_);
  return picture;
}

}  // namespace terrace
