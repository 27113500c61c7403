// Time as a collaborator, so that tests can inject it.
#pragma once

#include <cstdint>

namespace terrace {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary start; never goes back. Thread-safe.
  virtual uint64_t now_ns() const = 0;
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  uint64_t now_ns() const override;
};

// Stands still until it is advanced. Not thread-safe.
class FakeClock final : public Clock {
 public:
  uint64_t now_ns() const override { return now_ns_; }
  void advance(uint64_t ns) { now_ns_ += ns; }

 private:
  uint64_t now_ns_ = 0;
};

}  // namespace terrace
