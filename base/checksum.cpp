#include <terrace/base/checksum.h>

// The library's plain functions keep to what every processor of the architecture has; where it is built with
// them, the others choose by what this one has. A step on nvme hashes every byte twice.
#if defined(TERRACE_XXHASH_CHOOSES)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace terrace {

uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace terrace
