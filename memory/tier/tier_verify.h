// Reads every block of a commit, beside the job that made it or without any. It changes and locks nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/tier/tier_manifest.h>

namespace terrace {

struct BadTierBlock {
  std::filesystem::path file;
  std::string store;
  uint32_t chunk = 0;
  uint32_t block = 0;   // its number in the chunk
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  Reason reason;  // in words, with both checksums
};

// `manifest` is of the space that has these paths, in any order. Calls `bad` for each bad block and returns
// the bytes that were read. Throws Error(io) when a tier file cannot be opened.
uint64_t verify_tier_blocks(std::span<const std::filesystem::path> paths, const TierManifest& manifest,
                            FunctionRef<void(const BadTierBlock&)> bad);

}  // namespace terrace
