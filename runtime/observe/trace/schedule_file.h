// Schedules as files of JSON lines (docs/schedule_format.md), which `terrace sim` replays, whoever wrote
// them. The code here must never decide what a schedule means: sim does.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/sim/sim_schedule.h>

namespace terrace {

// Returns a line for the schedule, one for each item, and one for each use.
std::string schedule_text(const SimSchedule& schedule);
// `name` stands for the text in messages. Throws Error(config) naming line and column of text that is no
// schedule, and as check_schedule() does.
SimSchedule parse_schedule(std::string_view text, std::string_view name);

// These read and write files of at most 1 GiB; they throw Error(io) when the file cannot be read or written.
SimSchedule read_schedule(const std::filesystem::path& path);
void write_schedule(const std::filesystem::path& path, const SimSchedule& schedule);

}  // namespace terrace
