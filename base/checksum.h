#pragma once
// The checksum of everything that Terrace writes to a drive: blocks and manifests of the nvme tier, and
// checkpoints. It is part of both formats and never changes.

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// Returns the 64-bit XXH3 with seed 0, which is the same on every machine. Thread-safe; allocates nothing.
uint64_t checksum_of(std::span<const std::byte> bytes);

}  // namespace terrace
