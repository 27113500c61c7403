// StepRecord: what a dry run does, in the order in which the step thread comes to it, for a model of its
// time. It must never decide anything or be read while it is written.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include <terrace/base/mutex.h>

namespace terrace {

struct RecordedEvent {
  enum class Kind : uint8_t {
    begin_use,        // number: of the use in the step
    ready,            // its tensors are there: it computes
    end_use,          // it has computed
    end_micro_batch,  // its gradients begin to be waited for
    begin_update,     // every micro-batch is over
    end_step,
    copy_in,   // number: of the device slot, `amount` bytes to it; behind what was read since the last one
    copy_out,  // bytes from it
    attach,    // the slot gets addresses, once no copy is on its way; amount: the place of these, in slots
    detach,    // the slot loses them; later copies of it come behind the operations before this
    clear,     // bytes of it are made zero by the step thread
    work_in,   // bytes to work memory
    work_out,
    read_in,  // the device itself is going to read into the slot from a file
    read,     // bytes by the engine `number`, in the order of their making
    write,    // the same
  };
  Kind kind;
  uint32_t number = 0;
  uint64_t amount = 0;
};

// Thread-safe. A step of many chunks has millions of events: they lie in blocks, which nothing copies.
class StepRecord {
 public:
  void add(const RecordedEvent& event) {
    const MutexLock lock(mutex_);
    if (!stopped_) events_.push_back(event);
  }
  std::deque<RecordedEvent> take() {
    const MutexLock lock(mutex_);
    return std::exchange(events_, {});
  }
  // Nothing is recorded from now on.
  void stop() {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }

 private:
  Mutex mutex_;
  std::deque<RecordedEvent> events_ TERRACE_GUARDED_BY(mutex_);
  bool stopped_ TERRACE_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
