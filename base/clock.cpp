#include <terrace/base/clock.h>

#include <chrono>

namespace terrace {

uint64_t SteadyClock::now_ns() const {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

}  // namespace terrace
