// TierStart: a run starts afresh, or resumes from the commit that it finds in its tier folders.
#pragma once

#include <cstdint>

namespace terrace {

enum class TierStart : uint8_t { fresh, resume };

}  // namespace terrace
