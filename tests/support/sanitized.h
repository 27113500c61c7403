// Whether a sanitizer checks every access of this build: a search of its own is some ten times slower then.
#pragma once

namespace terrace::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace terrace::testing
