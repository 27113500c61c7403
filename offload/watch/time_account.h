// TimeAccount: what the step thread's time goes into. Every nanosecond belongs to exactly one cause, so that
// the parts of any span of time add up to it by construction: there is one clock, looked at once per change
// of cause, and what passed since the last look is charged to the innermost cause.
//
// It must never decide anything, allocate, or be asked by a thread that the step thread does not wait for.
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
  overhead,     // everything else: decisions, bookkeeping, data
};
inline constexpr size_t kTimeCauseCount = 7;
inline constexpr std::array<TimeCause, kTimeCauseCount> kTimeCauses = {
    TimeCause::compute, TimeCause::device_copy, TimeCause::read,    TimeCause::write,
    TimeCause::update,  TimeCause::commit,      TimeCause::overhead};

// "wait for reads": for people.
std::string_view name_of(TimeCause cause);
// "read_wait": for programs.
std::string_view key_of(TimeCause cause);

// A span of time by its causes.
struct TimeParts {
  std::array<uint64_t, kTimeCauseCount> ns{};

  uint64_t& operator[](TimeCause cause) { return ns[static_cast<size_t>(cause)]; }
  uint64_t operator[](TimeCause cause) const { return ns[static_cast<size_t>(cause)]; }
  uint64_t total_ns() const;
  bool operator==(const TimeParts&) const = default;
};
TimeParts operator-(const TimeParts& later, const TimeParts& earlier);
TimeParts operator+(const TimeParts& one, const TimeParts& other);

// Invariant: parts().total_ns() is the time since the account was made.
// Of the step thread. While that is blocked in a wait, whoever it waits for may call change() in its stead,
// under a mutex that the step thread takes before it goes on (StepWatch).
class TimeAccount {
 public:
  explicit TimeAccount(const Clock& clock)
      : clock_(clock), begin_ns_(clock.now_ns()), charged_ns_(begin_ns_) {}
  TimeAccount(const TimeAccount&) = delete;
  TimeAccount& operator=(const TimeAccount&) = delete;

  // From now on time is charged to `cause`, until leave(); outside of all it is overhead.
  void enter(TimeCause cause);
  void leave();
  // Another cause for what was entered last.
  void change(TimeCause cause);
  TimeCause current() const { return causes_[depth_]; }
  // Since the account was made, until now.
  TimeParts parts();

 private:
  static constexpr size_t kDepth = 16;
  void charge();

  const Clock& clock_;
  const uint64_t begin_ns_;
  uint64_t charged_ns_;  // up to here
  TimeParts parts_;
  std::array<TimeCause, kDepth> causes_ = {TimeCause::overhead};
  size_t depth_ = 0;
};

// A cause for the life of this object.
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
