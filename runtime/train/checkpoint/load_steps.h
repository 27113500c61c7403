// What every reader of a checkpoint does before it reads the state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <terrace/memory/space/flat_space.h>
#include <terrace/runtime/train/checkpoint/internal/manifest.h>

namespace terrace::checkpoint {

// `folder` is one checkpoint's. Throws Error(io) or what parse_manifest() throws.
Manifest read_manifest_of(const std::filesystem::path& folder);

// Throws Error(config) when what was saved in `where` is of other tensors than `space`, those of `model`.
void require_tensors(const std::filesystem::path& where, const CheckpointInfo& saved, std::string_view model,
                     const FlatSpace& space);

// Throws Error(config) when the checkpoint is of other tensors than `space`, those of `model`, and
// Error(corrupt) when its files are not as long as these make them.
void require_same_tensors(const std::filesystem::path& folder, const Manifest& manifest,
                          std::string_view model, const FlatSpace& space, uint64_t states_bytes,
                          uint64_t frozen_bytes);

}  // namespace terrace::checkpoint
