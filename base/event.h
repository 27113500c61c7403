// Event: one thread waits for it and others complete it. It is reusable and allocates nothing while nothing
// fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace terrace {

// Life: idle -> begin(count) -> count x complete_one() -> done -> begin() again. An Event starts done
// (nothing to wait for). Completing threads may be many; beginning and waiting belong to the owner. The first
// failure is kept and rethrown by every wait() until the next begin().
class Event {
 public:
  Event() = default;
  ~Event();  // asserts that nothing is pending
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Expects `count` completions. The event must be done.
  void begin(uint32_t count = 1);
  // Reports one completion; `failure` may be null. Thread-safe.
  void complete_one(std::exception_ptr failure = nullptr) noexcept;

  bool done() const noexcept { return pending_.load(std::memory_order_acquire) == 0; }
  bool failed() const noexcept { return done() && has_failure_.load(std::memory_order_acquire); }
  // Blocks until done; does not throw.
  void wait_done() const noexcept;
  // Blocks until done and rethrows the first failure.
  void wait() const;
  // The first failure of a done event, or null.
  std::exception_ptr failure() const noexcept;

 private:
  std::atomic<uint32_t> pending_{0};
  std::atomic<bool> has_failure_{false};
  std::exception_ptr failure_;  // written by the completion that sets has_failure_ first
};

}  // namespace terrace
