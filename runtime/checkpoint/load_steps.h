// The steps of every reader of a checkpoint, and how it reads records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include <terrace/base/function_ref.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>

namespace terrace::checkpoint {

// `folder` is one checkpoint's. Throws Error(io), and as parse_manifest() does.
Manifest read_manifest_of(const std::filesystem::path& folder);

// Throws Error(config) unless the states saved in `where` have as many moments as this run's optimizer. Their
// type may be another (MomentsAs).
void require_same_moments(const std::filesystem::path& where, const RecordLayout& saved,
                          const RecordLayout& mine);

// Imports records that were saved in the canonical layout `saved`, as this run's (MomentsAs). `read` and
// `skip` are of what was saved.
void import_records(const RecordLayout& saved, FunctionRef<void(std::span<std::byte>)> read,
                    FunctionRef<void(uint64_t)> skip, Offloader& offloader);

// Throws Error(corrupt) unless the files have the length that follows from their tensors.
void require_lengths(const std::filesystem::path& folder, const Manifest& manifest, uint64_t states_bytes,
                     uint64_t frozen_bytes);

// Sets the whole state from a checkpoint of the same tensors that lie otherwise, tensor by tensor.
void load_by_name(const std::filesystem::path& folder, const Manifest& manifest, const FlatSpace& space,
                  Offloader& offloader);

}  // namespace terrace::checkpoint
