// Long durations as people write them, everywhere in the same units.
#pragma once

#include <string>

namespace terrace {

// 750 s -> "12 min 30 s"; 45 s -> "45 s"; 126000 s -> "1 d 11 h". A negative value counts as 0.
std::string format_seconds(double seconds);

}  // namespace terrace
