#pragma once
// The checksum of everything that Terrace writes to a disk: of blocks of the nvme tier and of its manifests,
// and of checkpoints. Part of both formats: it never changes.

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// XXH3 with 64 bits and seed 0. The same on every machine; thread-safe, allocates nothing.
uint64_t checksum_of(std::span<const std::byte> bytes);

}  // namespace terrace
