// Time as a collaborator, so that tests can inject it.
#pragma once

#include <atomic>
#include <cstdint>

namespace terrace {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary start; never goes back. Thread-safe.
  virtual uint64_t now_ns() const = 0;
};

// Reads CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  uint64_t now_ns() const override;
};

// Stands still until it is advanced. Thread-safe.
class FakeClock final : public Clock {
 public:
  uint64_t now_ns() const override { return now_ns_.load(); }
  void advance(uint64_t ns) { now_ns_.fetch_add(ns); }
  // Advances to that moment unless it has passed.
  void advance_to(uint64_t ns) {
    uint64_t now = now_ns_.load();
    while (now < ns && !now_ns_.compare_exchange_weak(now, ns)) {
    }
  }

 private:
  std::atomic<uint64_t> now_ns_{0};
};

}  // namespace terrace
