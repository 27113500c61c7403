// How often this test program has called operator new, on any thread. For tests of code that must not
// allocate.
#pragma once

#include <cstdint>

namespace terrace {

uint64_t allocation_count();

}  // namespace terrace
