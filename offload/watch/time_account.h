// TimeAccount: the step thread's time by cause. Every nanosecond belongs to exactly one cause, so the parts
// of any span of time add up to it by construction: one clock is read once per change of cause, and the time
// since the last reading is charged to the innermost cause.
//
// It must never decide anything or allocate, and only the step thread, or a thread that it waits for, may
// call it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <terrace/base/clock.h>

namespace terrace {

enum class TimeCause : uint8_t {
  compute,      // the model's operations, and sums over gradients
  device_copy,  // waiting for a copy to the device or from it
  read,         // waiting for a read from nvme, or for the turn to read
  write,        // waiting for a write to nvme
  update,       // the update, or waiting for one that computes beside the step thread
  commit,       // keeping the state: commits and checkpoints
  ranks,        // waiting for other ranks, or for bytes of theirs
  overhead,     // everything else: decisions, bookkeeping, data
};
inline constexpr size_t kTimeCauseCount = 8;
inline constexpr std::array<TimeCause, kTimeCauseCount> kTimeCauses = {
    TimeCause::compute, TimeCause::device_copy, TimeCause::read,  TimeCause::write,
    TimeCause::update,  TimeCause::commit,      TimeCause::ranks, TimeCause::overhead};

// "wait for reads": for people.
std::string_view name_of(TimeCause cause);
// "read_wait": for programs.
std::string_view key_of(TimeCause cause);

// TimeParts: a span of time by its causes.
struct TimeParts {
  std::array<uint64_t, kTimeCauseCount> ns{};

  uint64_t& operator[](TimeCause cause) { return ns[static_cast<size_t>(cause)]; }
  uint64_t operator[](TimeCause cause) const { return ns[static_cast<size_t>(cause)]; }
  uint64_t total_ns() const;
  bool operator==(const TimeParts&) const = default;
};
TimeParts operator-(const TimeParts& later, const TimeParts& earlier);
TimeParts operator+(const TimeParts& one, const TimeParts& other);

// Invariant: parts().total_ns() is the time since the account was constructed. The step thread uses the
// account. While it is blocked in a wait, the thread it waits for may call change() in its stead, under a
// mutex that the step thread takes before it goes on (StepWatch).
class TimeAccount {
 public:
  explicit TimeAccount(const Clock& clock)
      : clock_(clock), begin_ns_(clock.now_ns()), charged_ns_(begin_ns_) {}
  TimeAccount(const TimeAccount&) = delete;
  TimeAccount& operator=(const TimeAccount&) = delete;

  // enter() charges time to `cause` until the matching leave(); time outside of every cause is overhead.
  void enter(TimeCause cause);
  void leave();
  // Replaces the innermost cause.
  void change(TimeCause cause);
  TimeCause current() const { return causes_[depth_]; }
  // The time that has been charged to the cause: what is being spent now is not.
  uint64_t charged_ns(TimeCause cause) const { return parts_[cause]; }
  // The parts of the time from the account's construction until now.
  TimeParts parts();

 private:
  static constexpr size_t kDepth = 16;
  void charge();

  const Clock& clock_;
  const uint64_t begin_ns_;
  uint64_t charged_ns_;  // time up to here is charged
  TimeParts parts_;
  std::array<TimeCause, kDepth> causes_ = {TimeCause::overhead};
  size_t depth_ = 0;
};

// TimeScope: a cause that lasts as long as this object.
class TimeScope {
 public:
  TimeScope(TimeAccount& account, TimeCause cause) : account_(account) { account.enter(cause); }
  ~TimeScope() { account_.leave(); }
  TimeScope(const TimeScope&) = delete;
  TimeScope& operator=(const TimeScope&) = delete;

 private:
  TimeAccount& account_;
};

}  // namespace terrace
