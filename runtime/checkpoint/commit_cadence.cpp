#include <terrace/runtime/checkpoint/commit_cadence.h>

#include <limits>

namespace terrace {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

uint64_t in_ns(uint64_t seconds) {
  return seconds > std::numeric_limits<uint64_t>::max() / kSecondNs ? std::numeric_limits<uint64_t>::max()
                                                                    : seconds * kSecondNs;
}

}  // namespace

CommitCadence::CommitCadence(uint64_t every_steps, uint64_t every_seconds, const Clock& clock)
    : every_steps_(every_steps), every_ns_(in_ns(every_seconds)), clock_(clock), last_ns_(clock.now_ns()) {}

void CommitCadence::begun(uint64_t step) {
  last_step_ = step;
  last_ns_ = clock_.now_ns();
}

bool CommitCadence::due(uint64_t step) const {
  if (step <= last_step_) return false;
  if (every_steps_ > 0 && step - last_step_ >= every_steps_) return true;
  return every_ns_ > 0 && clock_.now_ns() - last_ns_ >= every_ns_;
}

}  // namespace terrace
