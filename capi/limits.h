// The limits of numbers that a program gives: beyond them sums of sizes could overflow, or memory would end
// before the first byte is placed.
#pragma once

#include <cstdint>

#include <terrace/capi/names.h>

namespace terrace::c {

inline constexpr uint64_t kMostBytes = uint64_t{1} << 56;
inline constexpr uint64_t kMostChunkElements = uint64_t{1} << 36;
inline constexpr uint32_t kMostAccumulationSteps = 1 << 20;
inline constexpr uint64_t kMostUses = 1 << 22;
inline constexpr uint32_t kMostThreads = 4096;
inline constexpr uint32_t kMostDevices = 4096;
inline constexpr uint32_t kMostRetainedCommits = 1024;
inline constexpr uint64_t kMostCommitText = 1 << 20;

// Throw Error(config).
void require_bytes(uint64_t bytes, const Subject& action, const Subject& name);
void require_at_most(uint64_t value, uint64_t most, const Subject& action, const Subject& name);
void require_zero(uint32_t value, const Subject& action, const Subject& name);

}  // namespace terrace::c
