#include <terrace/base/event.h>

#include <string>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {

Event::~Event() {
  TERRACE_ASSERT(done(), std::to_string(pending_.load()) + " completions are still expected");
}

void Event::begin(uint32_t count) {
  TERRACE_ASSERT(done(),
                 "an event was begun while " + std::to_string(pending_.load()) + " completions are pending");
  TERRACE_ASSERT(count > 0, "an event expects at least one completion");
  failure_ = nullptr;
  has_failure_.store(false, std::memory_order_relaxed);
  pending_.store(count, std::memory_order_release);
}

void Event::complete_one(std::exception_ptr failure) noexcept {
  if (failure != nullptr && !has_failure_.exchange(true, std::memory_order_acq_rel))
    failure_ = std::move(failure);
  const uint32_t before = pending_.fetch_sub(1, std::memory_order_acq_rel);
  TERRACE_ASSERT(before > 0, "an event was completed more often than it was begun");
  if (before == 1) pending_.notify_all();
}

void Event::wait_done() const noexcept {
  uint32_t pending = pending_.load(std::memory_order_acquire);
  while (pending != 0) {
    pending_.wait(pending, std::memory_order_acquire);
    pending = pending_.load(std::memory_order_acquire);
  }
}

void Event::wait() const {
  wait_done();
  if (has_failure_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
}

std::exception_ptr Event::failure() const noexcept {
  return failed() ? failure_ : nullptr;
}

}  // namespace terrace
