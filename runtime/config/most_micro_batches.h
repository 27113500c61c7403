// The most micro-batches that a step may have. Each is planned by itself before training starts; with more of
// them planning would take hours.
#pragma once

#include <cstdint>

namespace terrace {

inline constexpr uint32_t kMostMicroBatches = 16384;

}  // namespace terrace
