// How long the steps of a period take, when it is decided what moves for which use.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/sim/internal/level_replay.h>

namespace terrace::sim {

// What moves over one link in each step of its period.
using LinkSteps = std::vector<std::vector<Traffic>>;

// How many uses ahead of theirs the loads of the top level find room, for each step of its period and each
// use.
std::vector<std::vector<uint32_t>> leads_of(const CacheLevel& level, const LevelRun& run, uint32_t use_count,
                                            uint32_t prefetch_depth);

// The mean of a step in ns over `period_steps`, once the links are in their stride.
double step_time_ns(const SimSchedule& schedule, const SimMachine& machine,
                    const std::vector<LinkSteps>& links, const std::vector<std::vector<uint32_t>>& leads,
                    uint64_t period_steps);

// What a link is busy for so many bytes and transfers in one direction.
double busy_ns(double bytes, double count, double bytes_per_second, uint64_t latency_ns);

}  // namespace terrace::sim
