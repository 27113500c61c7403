// How many micro-batches a step may have. Each is planned by itself, before anything is trained: with more of
// them that would take hours.
#pragma once

#include <cstdint>

namespace terrace {

inline constexpr uint32_t kMostMicroBatches = 16384;

}  // namespace terrace
