// How long tests wait for what another thread or process does. It decides nothing on a slow or busy machine:
// it is there so that what never happens is told by the test that waits for it.
#pragma once

#include <chrono>
#include <thread>

namespace terrace::testing {

inline constexpr std::chrono::seconds kPatience{900};

// Asks again and again until the condition holds. False: it never did.
template <typename Condition>
bool comes_true(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace terrace::testing
