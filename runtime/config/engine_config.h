// A configuration as the engine for Python takes it: the same schema, reader and resolver as the program's,
// with the differences of schema/engine_keys.h. Its result is a JSON text, for programs of other languages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/runtime/config/tier_paths.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// What the loop brings is not made up for a file of "auto" without these sections.
struct EngineConfigOptions {
  bool brings_optimizer = false;
  bool brings_schedule = false;                             // the scheduler section then has no effect
  std::optional<uint64_t> total_step_count = std::nullopt;  // of the run, for schedules that end with it
  uint32_t ranks = 1;  // each has the same number of micro-batches in a step
  RankSeat seat = {};  // of this rank, whose nvme paths the result has
};

struct EngineConfig {
  TrainConfig config;
  // {"values": {path: value}, "written": {path: key}, "auto": [path], "sections": [path],
  //  "without_effect": [line], "old_names": [line], "warnings": [line], "store": {...}}
  // with every value that has an effect, the key that gave it, and in "store" what follows from several keys.
  std::string json;
};

// Returns the document of a configuration as plain JSON, whatever it says. Throws Error(config) for text that
// is no JSON.
std::string config_document(std::string_view text, std::string_view name);
// Returns the bytes of the file. Throws Error(config).
std::string config_file(const std::filesystem::path& path);

// `name` stands for the text in messages; without one they name keys alone. Throws Error(config): on the
// first key that is wrong, with its place, and a line of the reason for each of the others.
EngineConfig parse_engine_config(std::string_view text, std::string_view name,
                                 const EngineConfigOptions& options);

}  // namespace terrace
