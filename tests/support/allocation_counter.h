// Counts what the calling thread takes from operator new, for tests that promise not to allocate.
#pragma once

#include <cstdint>

namespace terrace::testing {

// Under the thread sanitizer operator new is its own, and all of these stay 0.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kCountsAllocations = false;
#else
inline constexpr bool kCountsAllocations = true;
#endif

// Calls of operator new by this thread since it started.
uint64_t allocations_of_this_thread();
// The same of every thread of the process, those of libraries included.
uint64_t allocations_of_all_threads();
// What the calls of this thread asked for, all together: what is given back does not count.
uint64_t allocated_bytes_of_this_thread();

}  // namespace terrace::testing
