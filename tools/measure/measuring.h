// What the measuring commands share: rounds, what several of them come to, choices by name, the memory that a
// measurement needs, and streams between a file and a ring.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/aio/drives/drive_token.h>
#include <terrace/aio/engine.h>
#include <terrace/aio/file.h>
#include <terrace/aio/ring_buffer.h>
#include <terrace/aio/stream_job.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/text/json_writer.h>

#include "console.h"

namespace terrace {

inline constexpr double kGigabyte = 1e9;

// Spread: the median, least and greatest result of several rounds of a measurement.
struct Spread {
  double median = 0, least = 0, most = 0;
};

// `values` must not be empty.
Spread spread_of(std::vector<double> values);
// Writes the member {"median": 1.5, "least": 1.0, "most": 2.0}, with this many decimals.
void write_spread(JsonWriter& json, std::string_view key, const Spread& spread, int decimals = 6);

// Says on the console which round it is; round 0 warms up.
void show_round(uint64_t round, uint64_t rounds, Console& console);
// Calls `round` for round 0, which warms up and is not counted, and for every round from 1 on, and shows
// each. Every round should measure everything once, so that all see the same machine.
void for_each_round(uint64_t rounds, Console& console, FunctionRef<void(uint64_t)> round);

// Throws Error(config) for a name of no engine.
io::EngineChoice engine_of_flag(const std::string& flag, const std::string& name);
// Throws Error(capacity) if a measurement of `what` needs more memory than the machine has.
void require_memory_for(const std::string& what, uint64_t needed_bytes, const std::string& advice);

// Makes a file of `bytes`, whose space is reserved and which loses its name at once, so that nothing remains
// of it however the program ends. Throws Error(capacity) if there is too little space.
io::File make_nameless_file(const std::filesystem::path& path, uint64_t bytes, bool direct);
// The bytes are noise: a drive that compresses, or recognises zeros, must not gain by it.
void fill_with_noise(std::span<std::byte> memory, uint64_t seed);

// What a stream is between, and how.
struct MeasuredStream {
  const io::File& file;
  std::filesystem::path name;  // of the file, or of its folder, in errors
  io::RingBuffer& ring;
  io::EngineOptions engine;
  io::StreamOptions stream;
  bool register_memory = true;
  bool register_file = true;
};
struct StreamOutcome {
  io::StreamResult result;
  io::EngineStats stats;
  std::string registration_refusal;  // empty if memory and file are registered
};
// Runs the stream with an engine of its own, in a turn on the drive, because two measurements at once would
// measure each other (null: without a turn). Throws Error(io).
StreamOutcome run_measured_stream(const MeasuredStream& measured, io::DriveToken* turn, Log& log);

}  // namespace terrace
