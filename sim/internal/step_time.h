// The time that the steps of a period take, once it is decided which items move for which use.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/sim/internal/level_replay.h>

namespace terrace::sim {

// The traffic over one link in each step of its period.
using LinkSteps = std::vector<std::vector<Traffic>>;

// For each step of the top level's period and each use, how many uses ahead its loads find room.
std::vector<std::vector<uint32_t>> leads_of(const CacheLevel& level, const LevelRun& run, uint32_t use_count,
                                            uint32_t prefetch_depth);

// The mean time of a step in ns over `period_steps`, once the links are in a steady state.
double step_time_ns(const SimSchedule& schedule, const SimMachine& machine,
                    const std::vector<LinkSteps>& links, const std::vector<std::vector<uint32_t>>& leads,
                    uint64_t period_steps);

// The time that a link is busy with so many bytes and transfers in one direction.
double busy_ns(double bytes, double count, double bytes_per_second, uint64_t latency_ns);

}  // namespace terrace::sim
