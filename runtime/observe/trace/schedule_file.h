// Schedules as files of JSON lines (docs/schedule_format.md): what `terrace sim` replays, written by it or by
// anybody. It must never decide what a schedule means: that is sim.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/sim/sim_schedule.h>

namespace terrace {

// A line for the schedule, one for each item, one for each use.
std::string schedule_text(const SimSchedule& schedule);
// `name` stands for the text in messages. Throws Error(config) naming line and column of what is not a
// schedule, and what check_schedule() throws.
SimSchedule parse_schedule(std::string_view text, std::string_view name);

// The same with files of at most 1 GiB; Error(io) when the file cannot be read or written.
SimSchedule read_schedule(const std::filesystem::path& path);
void write_schedule(const std::filesystem::path& path, const SimSchedule& schedule);

}  // namespace terrace
