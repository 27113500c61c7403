// Manifest: the contents of a checkpoint's manifest.json, converted to text and back. Parsing must never
// trust a byte of the text: see parse_manifest().
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/runtime/train/checkpoint/checkpoint.h>

namespace terrace::checkpoint {

inline constexpr uint64_t kFormatVersion = 4;  // version that is written; earlier ones are read
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kStatesName = "states.bin";
inline constexpr const char* kFrozenName = "frozen.bin";

// The unit of checksums in both data files: whole tiles of every layout. The last block of a file is short.
inline constexpr uint64_t kBlockBytes = 768 * 1024;
static_assert(kBlockBytes == 16 * RecordLayout{}.tile_bytes());
// Room for the checksums of 12 TiB of state. A longer manifest is refused before it is read.
inline constexpr uint64_t kMaxManifestBytes = 256 * 1024 * 1024;

struct DataFile {
  uint64_t bytes = 0;
  std::vector<uint64_t> block_checksums;  // xxh3, 64 bit: one per kBlockBytes begun
};

struct Manifest {
  CheckpointInfo info;
  DataFile states;
  DataFile frozen;  // there is no such file if it has no bytes
  uint64_t version = kFormatVersion;
  RecordLayout layout = {};  // of the states, whose masters are always whole; the default before version 3
};

uint64_t block_count(uint64_t bytes);
// Returns sixteen hexadecimal digits, lower case.
std::string hex_text(uint64_t value);

std::string manifest_text(const Manifest& manifest);
// Completes a manifest, given up to its last member without the closing brace, with the checksum of its text.
std::string with_checksum(const std::string& body);
// `path` is named in errors. Throws Error(corrupt) unless manifest_text() writes the text byte for byte, and
// Error(config) when a later version wrote it.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

}  // namespace terrace::checkpoint
