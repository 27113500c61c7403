// StepRecord: the events of a dry run, in the order in which the step thread makes them, for a model of its
// time. It must never decide anything or be read while it is written.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include <terrace/base/mutex.h>

namespace terrace {

struct RecordedEvent {
  enum class Kind : uint8_t {
    begin_use,        // a use begins; number: the use in the step
    ready,            // the tensors of the use have arrived: it computes
    end_use,          // the use has computed
    end_forward,      // of a stage of a pipeline: micro-batch `number` has gone forward,
    begin_backward,   // and it goes backward from here
    end_micro_batch,  // the wait for the micro-batch's gradients begins
    begin_update,     // every micro-batch is over
    end_step,
    copy_in,   // `amount` bytes are copied to device slot `number`, behind the reads since the last copy_in
    copy_out,  // `amount` bytes are copied from device slot `number`
    attach,    // the slot gets addresses, once no copy of it is under way; amount: their place, in slots
    detach,    // the slot loses its addresses; its later copies come behind the operations before this
    clear,     // the step thread clears `amount` bytes of the slot
    work_in,   // `amount` bytes are copied to work memory
    work_out,
    read_in,   // the device itself will read a file into the slot
    read,      // engine `number`, counted in the order of construction, reads `amount` bytes
    write,     // engine `number` writes `amount` bytes
    gather,    // the slot of the read_in before it gets `amount` bytes of chunk `number` from other ranks, or
               // they as many of it where those are more
    exchange,  // the same with gradients, behind the copies from the device since the last exchange
    between,   // of the gather or exchange before it, `amount` bytes cross between hosts
  };
  Kind kind;
  uint32_t number = 0;
  uint64_t amount = 0;
};

// StepRecord is thread-safe. A step of many chunks has millions of events, so a deque holds them: it grows
// without copying.
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
  // Ends the recording.
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
