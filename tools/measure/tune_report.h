// The results of `terrace tune`, in words, curves and JSON. The code here must never measure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/runtime/config/tuning/tuning.h>

namespace terrace {

// TunePoint: one measured setting.
struct TunePoint {
  io::EngineKind engine = io::EngineKind::io_uring;
  uint64_t block_bytes = 0;
  uint32_t queue_depth = 0;
  double bytes_per_second = 0;  // both directions together
};

struct TunedPath {
  std::string name;  // as it was given
  PathTuning tuning;
  std::vector<TunePoint> curve;    // points of the chosen engine, in the order of blocks and depths
  std::vector<TunePoint> engines;  // every engine that works, at the chosen setting
  uint64_t file_bytes = 0;
  uint64_t written_bytes = 0;
  std::string direct_refusal;  // why I/O goes through the page cache; empty: it does not
  std::string saved_as;        // empty: not saved
};

// Returns the sections to paste into a configuration, as one JSON object.
std::string config_section(const PathTuning& tuning);
std::string tune_text(const std::vector<TunedPath>& paths);
std::string tune_json(const std::vector<TunedPath>& paths);

}  // namespace terrace
