// The bounds of EngineOptions. Whatever takes them from a user (a configuration, a file of `terrace tune`, a
// flag) holds them to these.
#pragma once

#include <cstdint>

#include <terrace/base/units.h>

namespace terrace::io {

inline constexpr uint64_t kDirectBytes = 4096;  // a block is a multiple; no file system asks for more
inline constexpr uint64_t kLargestBlockBytes = kGiB;
inline constexpr uint32_t kLargestQueueDepth = 4096;
inline constexpr uint32_t kMostEngineThreads = 256;
inline constexpr uint32_t kLargestBacklog = 65536;

}  // namespace terrace::io
