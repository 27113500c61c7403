// The measurements that `terrace tune` took of a path, and the file that keeps them: one per machine and
// path, in the user's cache folder. They make a run faster or slower and never change a result. A file that
// is damaged, of another format, or of another drive or kernel is ignored with a reason. Nothing here
// measures.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <terrace/aio/engine.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// The place that a measurement holds for.
struct TunedPlace {
  std::string machine;         // its id, or its name where it has none
  std::filesystem::path path;  // canonical
  std::string device;          // "254:0 vda Some Model"
  std::string kernel;          // "6.1.0-18-amd64"
  bool operator==(const TunedPlace&) const = default;
};

struct PathTuning {
  TunedPlace place;
  std::string measured_at;  // UTC, "2026-01-31T12:00:00Z"
  io::EngineKind engine = io::EngineKind::io_uring;
  uint64_t block_bytes = 0;  // aio.block_size
  uint32_t queue_depth = 0;
  uint32_t thread_count = 0;  // aio.intra_op_parallelism
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  double mixed_bytes_per_second = 0;  // both directions together, blocks being read and written back
  bool operator==(const PathTuning&) const = default;
};

// Returns this machine with an existing folder on it. Throws Error(io) when the folder cannot be examined.
TunedPlace find_tuned_place(const std::filesystem::path& path);

// Returns $XDG_CACHE_HOME/terrace, or ~/.cache/terrace; empty if the environment names neither.
std::filesystem::path tuning_folder();
// Returns the file of a place in `folder`.
std::filesystem::path tuning_file(const std::filesystem::path& folder, const TunedPlace& place);

std::string tuning_text(const PathTuning& tuning);
// Throws Error(corrupt) for any text that tuning_text() does not write, and Error(config) for another format.
PathTuning parse_tuning(std::string_view text, std::string_view name);

// Writes the file atomically and makes the folder. Throws Error.
void save_tuning(const std::filesystem::path& folder, const PathTuning& tuning);
// Returns the tuning of a place, or none if there is none or it is stale; `why_not` then says why if there
// was one. Throws nothing but bad_alloc.
std::optional<PathTuning> find_tuning(const std::filesystem::path& folder, const TunedPlace& place,
                                      std::string& why_not);

// Combines several paths: the settings of the fastest one, with the sum of all queue depths.
PathTuning combined_tuning(std::span<const PathTuning> tunings);

}  // namespace terrace
