// Whether a sanitizer checks every access of this build: it is up to ten times slower then.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Of many like cases a test looks at one in so many: a sanitizer is there for what their code does to memory,
// and the builds without one see to every result.
inline constexpr uint64_t kOneIn = kSanitized ? 12 : 1;

// Returns one in so many of a list, beginning with the first.
template <typename Case>
std::vector<Case> thinned(const std::vector<Case>& all) {
  std::vector<Case> some;
  for (size_t i = 0; i < all.size(); i += kOneIn) some.push_back(all[i]);
  return some;
}

}  // namespace terrace::testing
