// The steps of every reader of a checkpoint before it reads the state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <terrace/memory/space/flat_space.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>

namespace terrace::checkpoint {

// `folder` is one checkpoint's. Throws Error(io), and as parse_manifest() does.
Manifest read_manifest_of(const std::filesystem::path& folder);

// Throws Error(config) unless the states saved in `where` have the layout of this run's optimizer, both with
// whole masters.
void require_same_layout(const std::filesystem::path& where, const RecordLayout& saved,
                         const RecordLayout& mine);

// Throws Error(config) unless the checkpoint has the tensors of `space`, which are those of `model`, and
// Error(corrupt) unless its files have the length that follows from them.
void require_same_tensors(const std::filesystem::path& folder, const Manifest& manifest,
                          std::string_view model, const FlatSpace& space, uint64_t states_bytes,
                          uint64_t frozen_bytes);

}  // namespace terrace::checkpoint
