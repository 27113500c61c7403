// TierStart: what a run does with the commit that it finds in its tier folders.
#pragma once

#include <cstdint>

namespace terrace {

enum class TierStart : uint8_t { fresh, resume };

}  // namespace terrace
