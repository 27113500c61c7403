// Manifest: the contents of a checkpoint's manifest.json, converted to text and back. Parsing must never
// trust a byte of the text: see parse_manifest().
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/saved/block_file.h>
#include <terrace/runtime/saved/save_folder.h>
#include <terrace/runtime/saved/saved_state.h>
#include <terrace/runtime/saved/sealed_text.h>

namespace terrace::checkpoint {

inline constexpr uint64_t kFormatVersion = 5;  // version that is written; earlier ones are read
inline constexpr const char* kStatesName = "states.bin";
inline constexpr const char* kFrozenName = "frozen.bin";

using saved::block_count;
using saved::DataFile;
using saved::hex_text;
using saved::kBlockBytes;
using saved::kManifestName;
using saved::kMaxManifestBytes;
static_assert(kBlockBytes == 16 * RecordLayout{}.tile_bytes());  // whole tiles of every layout

struct Manifest {
  CheckpointInfo info;
  DataFile states;
  DataFile frozen;  // there is no such file if it has no bytes
  uint64_t version = kFormatVersion;
  RecordLayout layout = {};  // of the states, whose masters are always whole; the default before version 3
  // In the order of their numbers, with what decides where they lie: name, shape, type, trainable, home,
  // by_matrix and counted_elsewhere.
  // None before version 5.
  std::vector<TensorSpec> tensors = {};
  std::vector<saved::StateManifest::File> others = {};  // files of the program that saved, beside these two

  // All of them, in their order.
  std::vector<saved::StateManifest::File> files() const;
};

// What a saved state says of the training in it (version 5).
std::string facts_text(const Manifest& manifest);
std::string manifest_text(const Manifest& manifest);
// `path` is named in errors. Throws Error(corrupt) unless manifest_text() writes the text byte for byte, and
// Error(config) when a later version wrote it.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

}  // namespace terrace::checkpoint
