// A value of one update, with the name under which monitors show it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace terrace {

struct Scalar {
  std::string_view tag;  // "Train/Samples/lr"
  double value = 0;
};

// The values of one update.
struct ScalarEvent {
  uint64_t samples = 0;     // sequences seen so far, this update's included: the horizontal axis
  double wall_seconds = 0;  // since 1970
  std::span<const Scalar> scalars;
};

// The start of a run: scalars behind it are not of this run.
struct MonitorStart {
  uint64_t samples = 0;  // sequences seen so far
  bool resumed = false;  // false: a folder that has scalars already is refused
  double wall_seconds = 0;
};

}  // namespace terrace
